"""Faults by the thousand against verify="checksum": which are seen, and which are healed to the bits of a clean call.

Needs the build of the extension in which values can be struck (trap_build.py). Each fault falls on a call that is made
twice: once with the checks' findings ignored, to see what the fault alone does, and once in earnest. Used by the tests
(test_checksum_campaign.py) and by tools/checksum_campaign.py, which makes it long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steadysum.diagnosis.profiles.strikes import MAGNITUDES, STAGES, passes_of
from steadysum.errors import AccuracyError
from steadysum.kernels import native, native_checksums
from steadysum.kernels.problem import Operands, Statistics
from steadysum.tiling import tiles

__all__ = ["KINDS", "MATTERS", "Outcome", "Ratios", "Tally", "campaign", "clean_ratios", "problems"]

# A fault matters if it moves a row's max, log-sum or target logit by more than this part of the row's largest |logit|.
MATTERS = 1e-3
PANEL_ROWS = {"avx512": 32, "avx2": 16, "portable": 16}  # of a panel of logits, [column][row]


class Clean(NamedTuple):
    """A call and what it gives without faults."""

    call: Operands
    found: Statistics
    largest: Tensor  # [N], max |z|
    passes: dict[str, int]  # of each target, in one verified call


class Outcome(NamedTuple):
    """What became of one fault."""

    stage: str
    magnitude: float | None  # None: a flipped bit
    matters: bool
    seen: bool
    right: bool  # the bits are those of the clean call
    raised: bool


@dataclass
class Tally:
    """Counts of outcomes."""

    matter: Counter[str] = field(default_factory=Counter)  # by stage
    lost: Counter[str] = field(default_factory=Counter)  # those of them that weren't healed to the bits
    cells: Counter[tuple[str, float | None, str]] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        if outcome.matters:
            self.matter[outcome.stage] += 1
            self.lost[outcome.stage] += not outcome.right
        for name in ("seen", "right", "matters", "raised"):
            self.cells[outcome.stage, outcome.magnitude, name] += getattr(outcome, name)
        self.cells[outcome.stage, outcome.magnitude, "all"] += 1

    def add_all(self, outcomes: Iterator[Outcome]) -> Tally:
        """Count all."""
        for outcome in outcomes:
            self.add(outcome)
        return self


def problems(module: ModuleType, count: int, seed: int) -> list[Clean]:
    """Calls of small shapes, of all kinds of operands and options."""
    return [_clean(module, _draw(np.random.default_rng([seed, i]))) for i in range(count)]


def _draw(random: np.random.Generator) -> Operands:
    rows = int(random.choice([1, 3, 4, 5, 17, 32, 40, 70]))
    hidden = int(random.integers(32, 400))
    vocab = int(2 ** random.uniform(4, 11.2))  # in few columns, one logit matters more often
    torch.manual_seed(int(random.integers(2**31)))
    x, w = torch.randn(rows, hidden), torch.randn(vocab, hidden) * hidden**-0.5
    kind = str(random.choice(["random", "peaked", "shifted", "tiny", "huge"]))
    if kind == "peaked":
        w[torch.randint(vocab, (3,))] *= 20
    if kind == "shifted":
        x, w = x + 3, w + 0.5
    if kind == "tiny":
        x = x * 1e-12
    if kind == "huge":
        x = x * 1e12
    dtype = [torch.float32, torch.float32, torch.bfloat16, torch.float16][int(random.integers(4))]
    if kind in ("tiny", "huge") and dtype == torch.float16:
        dtype = torch.bfloat16
    has_epilogue = random.random() < 0.3 and kind not in ("tiny", "huge")
    return Operands(
        input=x.to(dtype),
        weight=w.to(dtype),
        target=torch.randint(vocab, (rows,)),
        valid_vocab=vocab - int(random.integers(min(30, vocab - 1))),
        bias=torch.randn(vocab) if has_epilogue else None,
        scale=1.0,
        softcap=30.0 if has_epilogue and random.random() < 0.5 else None,
        temperature=None,
    )


def _clean(module: ModuleType, call: Operands) -> Clean:
    call = _with_targets_inside(call)
    logits = torch.empty(call.input.shape[0], call.weight.shape[0])
    native.logits(call, logits)
    largest = logits[:, : call.valid_vocab].abs().amax(dim=1)
    found = native.statistics([call])[0]
    return Clean(call, found, largest, passes_of(module, lambda: _verified(call)))


def _with_targets_inside(call: Operands) -> Operands:
    assert call.target is not None
    call.target.clamp_(max=call.valid_vocab - 1)
    return call


def _verified(call: Operands) -> tuple[Statistics, dict[str, Any]]:
    result = native.empty_results(call)
    return result, native_checksums.run([call], [result], [None])


def campaign(
    module: ModuleType, clean: list[Clean], faults: int, stages: tuple[str, ...], seed: int
) -> Iterator[Outcome]:
    """Strike `faults` times: half of them flip a bit, half add a part of the struck values' size."""
    random = np.random.default_rng(seed)
    for number in range(faults):
        each = clean[int(random.integers(len(clean)))]
        stage = stages[number % len(stages)]
        target = str(random.choice([t for t in STAGES[stage] if each.passes[t]] or ["none"]))
        if target == "none":  # e.g. packed input of few rows, which has no pass of its own
            continue
        flips = bool(random.random() < 0.5)
        magnitude = None if flips else float(random.choice(MAGNITUDES))
        what = {
            "after": int(random.integers(each.passes[target])),
            "index": int(random.integers(2**31)),
            "bit": int(random.integers(32)) if flips else -1,
            "add": 0.0 if magnitude is None else magnitude * _size(each, target),
        }
        if stage == "logit" and random.random() < 0.8:
            what |= _aimed(module, each, random)
        yield _strike(module, each, stage, target, magnitude, what)


def _aimed(module: ModuleType, clean: Clean, random: np.random.Generator) -> dict[str, int]:
    """Where the logit of a row's target lies, if the call has one tile: few others matter."""
    assert clean.call.target is not None
    if len(tiles(clean.call.weight.shape[0])) > 1:
        return {}
    panel = PANEL_ROWS[module.isa()]
    row = int(random.integers(clean.call.input.shape[0]))
    return {"after": row // panel, "index": int(clean.call.target[row]) * panel + row % panel}


def _size(clean: Clean, target: str) -> float:
    """The size of the values that a target has."""
    if target == "input":
        return float(clean.call.input.float().abs().max())
    if target == "weight":
        return float(clean.call.weight.float().abs().max())
    if target in ("exp", "sum"):
        return 1.0  # at least the largest logit's own term
    return float(clean.largest.max())


def _strike(
    module: ModuleType, clean: Clean, stage: str, target: str, magnitude: float | None, what: dict[str, Any]
) -> Outcome:
    number = module.TARGETS.index(target)
    module.strike(number, **what, unhealed=True)
    alone, _ = _verified(clean.call)
    module.strike(number, **what)
    try:
        healed, report = _verified(clean.call)
    except AccuracyError:
        return Outcome(stage, magnitude, _matters(clean, alone), seen=True, right=False, raised=True)
    finally:
        module.strike(0)
    seen = any(report["healed"].values()) or report["cleared"] > 0
    return Outcome(stage, magnitude, _matters(clean, alone), seen, _same_bits(clean.found, healed), raised=False)


def _log_sum(found: Statistics) -> Tensor:
    return found.max.double() + found.sum_exp.double().log()


def _matters(clean: Clean, struck: Statistics) -> bool:
    assert clean.found.target_logit is not None
    assert struck.target_logit is not None
    pairs = (
        (clean.found.max, struck.max),
        (_log_sum(clean.found), _log_sum(struck)),
        (clean.found.target_logit, struck.target_logit),
    )
    moved = torch.stack([(a.double() - b.double()).abs() for a, b in pairs])
    return bool((~(moved <= MATTERS * clean.largest.double())).any())


def _same_bits(a: Statistics, b: Statistics) -> bool:
    return all(
        torch.equal(x.view(torch.int32), y.view(torch.int32))
        for x, y in zip(a, b, strict=True)
        if x is not None and y is not None
    )


class Ratios(NamedTuple):
    """Of clean calls: how far residuals stay below their thresholds."""

    kind: str
    checks: int  # of one row in one tile
    alarms: int  # residuals beyond their threshold
    largest: float  # residual over threshold
    median: float  # threshold over residual


KINDS = ("random", "peaked", "shifted", "positive", "tiny", "huge", "bfloat16", "float16")


def clean_ratios(rows: int, hidden: int, vocab: int, seed: int) -> Iterator[Ratios]:
    """Verified calls without faults, for each kind of operands."""
    for kind in KINDS:
        torch.manual_seed(seed)
        x, w = torch.randn(rows, hidden), torch.randn(vocab, hidden) * hidden**-0.5
        if kind == "peaked":
            w[torch.randint(vocab, (30,))] *= 20
        elif kind == "shifted":
            x, w = x + 5, w + 1
        elif kind == "positive":
            x, w = x.abs(), w.abs()
        elif kind == "tiny":
            x = x * 1e-20
        elif kind == "huge":
            x = x * 1e20
        elif kind in ("bfloat16", "float16"):
            x, w = x.to(getattr(torch, kind)), w.to(getattr(torch, kind))
        call = Operands(x, w, bias=None, scale=1.0, softcap=None, temperature=None, valid_vocab=vocab)
        found = native.empty_results(call)
        squares = torch.zeros(len(tiles(vocab)), rows)
        report = native_checksums.run([call], [found], [None], [squares])
        ratio = squares.flatten().double().sqrt()
        alarms = int((ratio > 1).sum()) + report["cleared"] + sum(report["healed"].values())
        yield Ratios(kind, ratio.numel(), alarms, float(ratio.max()), float(1 / ratio.median()))
