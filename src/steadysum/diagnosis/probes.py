"""The probes: experiments that show on what an operator's bits depend.

A probe is data: a list of variants, each a way to compute the same rows again. `record` runs them, `weigh` compares
what they returned with the usual outputs of the plain, repeated call. No verdicts here: see verdicts.py.

Two kinds are needed at least, since many "flaky numerics" are no races: the same call again, and a row alone
(vllm issue 53257: reruns differ 0 of 50, a row computed alone differs 11 of 50).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from steadysum.diagnosis.compare import SAME, Deviation, compare, larger
from steadysum.diagnosis.digest import digest
from steadysum.diagnosis.observe import Outputs, Recording, observe
from steadysum.diagnosis.subject import Operands, Subject
from steadysum.ops.vocab_parallel import merge_max_sum, other_bits, split_vocab
from steadysum.tiling import Shard

# Each way of cutting a batch is run twice, so that a difference that comes back can be told from one that doesn't.
RUNS_OF_A_CUT = 2
SHARD_COUNTS = (2, 4, 8, 16)  # those whose equal shards of a large vocabulary are nodes of the fold's tree
MOST_PIECES = 5  # of a random split; enough that pieces of one and of many rows both occur

Never: Callable[[], bool] = lambda: False  # noqa: E731  (a default for `stopped`)
Ignore: Callable[[], None] = lambda: None  # noqa: E731  (a default for `progressed`)


@dataclass(frozen=True)
class Plan:
    """How much to run."""

    runs: int  # calls for each probe
    threads: tuple[int, ...]  # thread counts of the threads probe
    seed: int  # of permutations, cuts and row samples
    interpreted_runs: int | None = None  # as runs, of subjects that are interpreted; None: as the others

    def of(self, subject: Subject) -> Plan:
        """With the runs of this subject."""
        if subject.interpreted and self.interpreted_runs is not None:
            return replace(self, runs=self.interpreted_runs)
        return self


@dataclass(frozen=True)
class Variant:
    """One way to compute the batch, or some of its rows, again."""

    label: str
    prepare: Callable[[], Callable[[], Outputs]]  # makes the call; its operands live only as long as its runs
    runs: int
    rows: Tensor | None = None  # the rows of the batch that the outputs hold, in order; None: all of them
    threads: int | None = None  # None: torch's current number


@dataclass(frozen=True)
class Probe:
    """An experiment on an operator."""

    name: str
    promise: str  # the promise of a kernel that it tests
    question: str
    variants: Callable[[Subject, Operands, Plan], list[Variant]]  # empty where the operands are too small for it


@dataclass(frozen=True)
class VariantEvidence:
    """What one variant showed."""

    label: str
    calls: int
    deviating: int
    agrees: bool  # all its runs gave the same bits


@dataclass(frozen=True)
class Evidence:
    """What one probe showed."""

    calls: int
    planned: int  # more than calls where the probe was stopped early
    deviating: int
    largest: Deviation  # over all kept outputs
    variants: tuple[VariantEvidence, ...]

    @property
    def comes_back(self) -> bool:
        """Whether some variant deviated in all its runs, at least two, with the same bits each time."""
        return any(v.agrees and v.calls > 1 and v.deviating == v.calls for v in self.variants)


def record(
    variants: Sequence[Variant],
    stopped: Callable[[], bool] = Never,
    progressed: Callable[[], None] = Ignore,
) -> list[Recording]:
    """Runs each variant; the result is shorter than `variants` where it was stopped. Raises what the subject raises."""
    recordings: list[Recording] = []
    for variant in variants:
        if stopped():
            break
        with torch_threads(variant.threads):
            recordings.append(observe(variant.prepare(), variant.runs, stopped, progressed))
    return recordings


def weigh(
    subject: Subject,
    variants: Sequence[Variant],
    recordings: Sequence[Recording],
    baseline: Recording,  # of the repeat probe: its usual outputs are what is expected
) -> Evidence:
    """Compares what the variants returned with the usual outputs of the repeated call."""
    shown: list[VariantEvidence] = []
    largest = SAME
    for variant, recording in zip(variants, recordings, strict=False):
        if recording.calls == 0:
            continue
        expected = _rows_of(baseline.usual_outputs, variant.rows)
        expected_digest = digest(expected)
        for seen, outputs in recording.kept.items():
            if seen != expected_digest:
                deviation = compare(expected, outputs, subject.outputs)
                largest = larger(largest, _in_batch_rows(deviation, variant.rows))
        deviating = recording.deviating(expected_digest)
        shown.append(VariantEvidence(variant.label, recording.calls, deviating, recording.agrees))
    return Evidence(
        calls=sum(variant.calls for variant in shown),
        planned=sum(variant.runs for variant in variants),
        deviating=sum(variant.deviating for variant in shown),
        largest=largest,
        variants=tuple(shown),
    )


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Sets torch's number of threads, and restores it; None leaves it."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            torch.set_num_threads(before)


def _repeat(subject: Subject, operands: Operands, plan: Plan) -> list[Variant]:
    return [Variant("the same call", lambda: lambda: subject(operands), plan.runs)]


def _threads(subject: Subject, operands: Operands, plan: Plan) -> list[Variant]:
    runs = max(RUNS_OF_A_CUT, plan.runs // len(plan.threads))
    return [Variant(f"threads={t}", lambda: lambda: subject(operands), runs, threads=t) for t in plan.threads]


def _rows_alone(subject: Subject, operands: Operands, plan: Plan) -> list[Variant]:
    """A sample of rows, the first and the last among them, since edges of blocks are where cuts go wrong."""
    rows = operands.shape[0]
    wanted = min(rows, max(1, plan.runs // RUNS_OF_A_CUT))
    order = torch.randperm(rows, generator=_generator(plan.seed, 1)).tolist()
    edges = [0, rows - 1][:wanted] if rows > 1 else [0]
    sample = edges + [row for row in order if row not in edges][: wanted - len(edges)]

    def alone(row: int) -> Variant:
        def prepare() -> Callable[[], Outputs]:
            one = operands.input[row : row + 1]
            return lambda: tuple(subject.call(one, operands.weight))

        return Variant(f"row={row}", prepare, RUNS_OF_A_CUT, rows=torch.tensor([row]))

    return [alone(row) for row in sorted(sample)]


def _shuffled(subject: Subject, operands: Operands, plan: Plan) -> list[Variant]:
    """The batch in another order of rows; the outputs are put back into the old one."""
    rows = operands.shape[0]
    if rows < 2:
        return []
    generator = _generator(plan.seed, 2)

    def shuffled(place: int, order: Tensor) -> Variant:
        def prepare() -> Callable[[], Outputs]:
            mixed, back = operands.input[order], order.argsort()
            return lambda: tuple(output[back] for output in subject.call(mixed, operands.weight))

        return Variant(f"permutation={place}", prepare, RUNS_OF_A_CUT)

    cuts = max(1, plan.runs // RUNS_OF_A_CUT)
    return [shuffled(place, torch.randperm(rows, generator=generator)) for place in range(cuts)]


def _split(subject: Subject, operands: Operands, plan: Plan) -> list[Variant]:
    """The batch in two to five pieces, cut at random rows, one call each; a call of this probe is all pieces."""
    rows = operands.shape[0]
    if rows < 2:
        return []
    generator = _generator(plan.seed, 3)

    def split(bounds: list[int]) -> Variant:
        def prepare() -> Callable[[], Outputs]:
            pieces = [operands.input[start:stop] for start, stop in pairwise(bounds)]

            def call() -> Outputs:
                parts = [tuple(subject.call(piece, operands.weight)) for piece in pieces]
                return tuple(torch.cat(column) for column in zip(*parts, strict=True))

            return call

        return Variant(f"cut_at={bounds[1:-1]}", prepare, RUNS_OF_A_CUT)

    variants = []
    for _ in range(max(1, plan.runs // RUNS_OF_A_CUT)):
        cuts = int(torch.randint(1, min(MOST_PIECES, rows), (), generator=generator))
        inner = torch.randperm(rows - 1, generator=generator)[:cuts] + 1
        variants.append(split([0, *sorted(inner.tolist()), rows]))
    return variants


def _shards(subject: Subject, operands: Operands, plan: Plan) -> list[Variant]:
    """The vocabulary in 2, 4, 8 and 16 shards, one call each, folded; where they are nodes of the vocabulary's tree."""
    vocab = operands.shape[2]
    counts = [count for count in SHARD_COUNTS if count <= vocab and other_bits(split_vocab(vocab, count)) is None]
    of_shard = subject.shard
    if of_shard is None or not counts:
        return []

    def sharded(count: int) -> Variant:
        def prepare() -> Callable[[], Outputs]:
            cut = split_vocab(vocab, count)
            weights = [operands.weight[columns.start : columns.stop] for columns in cut]

            def call() -> Outputs:
                pairs = zip(weights, cut, strict=True)
                parts = [of_shard(operands.input, weight, Shard(columns.start, vocab)) for weight, columns in pairs]
                return tuple(merge_max_sum(parts, cut))

            return call

        return Variant(f"shards={count}", prepare, max(RUNS_OF_A_CUT, plan.runs // len(counts)))

    return [sharded(count) for count in counts]


REPEAT = Probe("repeat", "run-to-run", "Does the same call give the same bits?", _repeat)
PROBES = (
    REPEAT,
    Probe("threads", "threads", "Do the bits depend on the number of threads?", _threads),
    Probe("rows alone", "batch", "Does a row computed alone have the bits it has in the batch?", _rows_alone),
    Probe("shuffled", "batch", "Do a row's bits depend on its place in the batch?", _shuffled),
    Probe("split", "batch", "Do a row's bits depend on how the batch is cut?", _split),
)
SHARDS = Probe("shards", "shards", "Do the bits depend on how the vocabulary is cut into shards?", _shards)


def probes_of(subject: Subject) -> tuple[Probe, ...]:
    """The probes that can be asked of a subject: that of shards if it knows any."""
    return PROBES if subject.shard is None else (*PROBES, SHARDS)


def _generator(seed: int, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 4 + stream)  # an own stream for each probe, whatever the others draw


def _rows_of(outputs: Outputs, rows: Tensor | None) -> Outputs:
    return outputs if rows is None else tuple(output[rows] for output in outputs)


def _in_batch_rows(deviation: Deviation, rows: Tensor | None) -> Deviation:
    """The deviation with its first row numbered as in the whole batch."""
    if rows is None or deviation.first_row is None:
        return deviation
    return replace(deviation, first_row=int(rows[deviation.first_row]))
