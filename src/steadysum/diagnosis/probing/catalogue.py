"""The probes, as a table: what each asks, under which conditions, and what its runs are compared with.

A new probe is a row. Not here: how the conditions are made (isolation/), and how the runs are judged (evidence.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from steadysum.diagnosis.isolation.arranged import Condition
from steadysum.diagnosis.isolation.surroundings import SENTINELS

__all__ = [
    "EXACT_INPUTS",
    "FLOAT64",
    "FRESH_PROCESS",
    "OWN_RUNS",
    "PLAIN_RESULT",
    "PROBES",
    "REFERENCE",
    "RERUN",
    "SAME_RANDOM_STATE",
    "Probe",
]

PLAIN_RESULT: Final = "the plain result"
OWN_RUNS: Final = "the most frequent of its own runs"


class Probe(NamedTuple):
    """One question."""

    name: str
    question: str
    conditions: tuple[Condition, ...]
    runs: int  # where plain reruns are all alike; more where they deviate, so that a change of the rate shows
    compared_with: str = PLAIN_RESULT


RERUN: Final = Probe("rerun", "Do plain reruns give the same bits?", (), 299, OWN_RUNS)
FRESH_PROCESS: Final = Probe("fresh_process", "Is the first call of a process unlike its later ones?", (), 2)
FLOAT64: Final = Probe(
    "float64", "Is the plain result as near to float64 as rounding allows?", (Condition("float64"),), 3, "float64"
)
REFERENCE: Final = Probe(
    "reference", "Is the plain result as near to the reference as rounding allows?", (), 1, "the reference"
)
EXACT_INPUTS: Final = Probe(
    "exact_inputs",
    "Do reruns agree where every order of summation is exact?",
    (Condition("exact_inputs"),),
    20,
    OWN_RUNS,
)
SAME_RANDOM_STATE: Final = Probe(
    "same_random_state",
    "Do reruns agree from one random state?",
    (Condition("same_random_state"),),
    20,
    OWN_RUNS,
)


def _one(name: str, question: str, runs: int, condition: str, **values: object) -> Probe:
    return Probe(name, question, (Condition(condition, dict(values)),), runs)


_A, _B = SENTINELS

# In order of what they tell for their time: a short budget gets through the first ones.
PROBES: Final = (
    _one("prefilled_memory_a", "Does freed memory show in the result?", 12, "prefilled_memory", byte=_A),
    _one("prefilled_memory_b", "Does freed memory with other content show?", 12, "prefilled_memory", byte=_B),
    _one("two_callers", "Does a second caller at the same time disturb it?", 40, "two_callers"),
    _one("rows_alone", "Has a row the same bits alone as in the batch?", 6, "rows_alone"),
    _one("synchronised", "Does waiting for each operation's end cure it?", 20, "synchronised"),
    _one("delays", "Do delays between and inside of operations show a race?", 30, "delays", rate=0.3),
    _one("dirty_workspace", "Does a call with other values just before show?", 20, "dirty_workspace"),
    _one("one_thread", "Are the bits the same with one thread?", 12, "threads", count=1),
    _one("filled_empties_a", "Do memory cells show that are never written?", 6, "filled_empties", byte=_A),
    _one("filled_empties_b", "Do they show with other content?", 6, "filled_empties", byte=_B),
    _one("two_threads", "Are the bits the same with two threads?", 12, "threads", count=2),
    _one("split", "Has a batch the same bits in pieces?", 6, "split"),
    _one("shuffled", "Has a row the same bits beside other neighbours?", 6, "shuffled", seed=1),
    _one("cpu_load", "Does other work on the processor show a race?", 30, "cpu_load"),
    _one("memory_load", "Does traffic to memory show a race?", 20, "memory_load"),
    _one("misaligned", "Are the bits the same at another address?", 6, "misaligned"),
    _one("strided", "Are the bits the same from rows that are apart?", 6, "strided"),
    _one("many_threads", "Are the bits the same with many threads?", 12, "threads", count=7),
)
