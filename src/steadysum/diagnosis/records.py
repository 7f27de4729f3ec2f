"""What a diagnosis is made of, as data: patterns of deviation, evidence of probes, ranked causes, and the whole answer.

All of it is frozen, and goes into JSON and back without a loss. Not here: how any of it is found (probing/, causes/),
or shown (reporting/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from steadysum.diagnosis.isolation.arranged import Condition
from steadysum.diagnosis.isolation.supervisor import Ending
from steadysum.diagnosis.rates import Interval

__all__ = ["Answer", "Diagnosis", "Evidence", "Outcome", "Pattern", "RankedCause", "Reproduction"]

SCHEMA_VERSION = 1


class Outcome(StrEnum):
    """What a probe showed."""

    SAME = "same"  # no run deviated
    DEVIATES = "deviates"
    FAILED = "failed"  # a run raised, crashed, hung or ran out of memory: see the ending
    VOID = "void"  # the condition never acted, or can't be set up for this operator: says nothing


@dataclass(frozen=True)
class Pattern:
    """Where and how the outputs of deviating runs differ from those that they are compared with."""

    output: str  # the tensor's path among the outputs
    shape: tuple[int, ...]
    dtype: str
    runs: int  # different outputs that were compared
    elements: int  # that differ, in the run with the most of them
    rows: tuple[int, ...]  # of the first dimension, that differ in any of the runs; 64 of them at most
    rows_touched: int  # in the run with the most of them
    largest_ulp: int
    largest_error: float  # absolute
    relative_error: float  # the largest error over the largest finite magnitude of the tensor compared with
    facts: frozenset[str]  # names; see probing/patterns.py for all of them
    heat: tuple[tuple[int, ...], ...] = ()  # counts over rows x columns, in 32 x 64 cells at most
    ulp_histogram: tuple[int, ...] = ()  # elements with a distance of 2^k .. 2^(k+1) ulp, k from 0


@dataclass(frozen=True)
class Evidence:
    """What one probe showed."""

    probe: str  # its name in probing/catalogue.py
    question: str  # in words
    compared_with: str  # "its first run", "the control", "float64"
    outcome: Outcome
    conditions: tuple[Condition, ...]
    planned: int
    runs: int
    deviating: int
    interval: Interval  # of the rate of deviating runs; valid after stopping
    ending: Ending
    acted: Mapping[str, int]  # condition -> how often it did what it is for
    seconds: float  # median of a run
    iterations: tuple[int, ...] = ()  # the runs that deviated, from 1; the first 256
    pattern: Pattern | None = None
    facts: frozenset[str] = frozenset()  # what this probe alone tells, beside the pattern's
    note: str = ""  # what else a reader should know, in a sentence
    control_runs: int = 0  # plain reruns that it is held against; 0: it has none
    control_deviating: int = 0
    control_seconds: float = 0.0  # median of a plain run


@dataclass(frozen=True)
class RankedCause:
    """A cause that the evidence was weighed for."""

    cause: str  # its name in causes/causes.toml
    title: str
    score: float  # the sum of the weights of facts for and against it: natural logarithm of odds
    evidence_for: tuple[str, ...]  # sentences
    evidence_against: tuple[str, ...]
    remedy: str
    source: str


class Answer(StrEnum):
    """The verdict on the operator."""

    FAULT = "fault"
    HARMLESS = "harmless"  # it differs, as rounding in another order does
    CLEAN = "clean"  # nothing deviated, at the rate asked for
    FAILED = "failed"  # it can't be run: it raised or crashed in every run
    NOT_DECIDED = "not decided"


@dataclass(frozen=True)
class Reproduction:
    """The smallest call found that still fails."""

    shapes: tuple[tuple[int, ...], ...]  # of the tensors among the arguments, in order
    dtype: str
    runs: int  # that suffice for a failure, with the confidence
    confidence: float
    interval: Interval  # of the rate of failures at these shapes
    script: str | None  # reproduce.py; None: not written


@dataclass(frozen=True)
class Diagnosis:
    """The answer of `diagnose`.

    `causes` are in order of their scores; `decided` says whether the first is ahead by enough to be named, and
    `next_probe` what would decide where it isn't.
    """

    target: str
    inputs: Mapping[str, Any]  # "source" in words, "tensors": dtype, shape, device of each
    answer: Answer
    verdict: str  # one sentence
    deviating: int  # of plain reruns
    runs: int
    interval: Interval
    confidence: float
    wanted_rate: float
    evidence: tuple[Evidence, ...]
    causes: tuple[RankedCause, ...]
    decided: bool
    next_probe: str = ""
    reproduction: Reproduction | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""
    seconds: float = 0.0
    partial: bool = False  # interrupted: what is known until then
    schema_version: int = SCHEMA_VERSION
