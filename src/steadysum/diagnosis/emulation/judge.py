"""One call on the device, and its outputs against those of the fault-free call: right, deviating, or raised."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.cores.device import Device
from steadysum.diagnosis.compare import absolute_deviation, bits_equal
from steadysum.diagnosis.subject import Operands
from steadysum.errors import SteadySumError
from steadysum.maxsum import MaxSum

__all__ = ["THRESHOLD", "Judged", "Outcome", "judge_call", "make_call"]

THRESHOLD: Final = 1e-3  # the field report's, absolute


class Outcome(StrEnum):
    """What became of a call."""

    RIGHT = "right"  # all bits are the fault-free call's
    DIFFERS = "other bits"  # some bits aren't, but no row is off by more than THRESHOLD
    DEVIATES = "deviates"  # some row's max or log-sum is
    RAISED = "raised"  # a policy refused to answer


class Judged(NamedTuple):
    """A call's outcome, and how far it is off."""

    outcome: Outcome
    largest: float = 0.0  # largest deviation of a row's max or log-sum; inf: NaN against a number
    wrong: Tensor | None = None  # [N], bool: rows with another max or sum; None where all are right, or it raised
    change: Tensor | None = None  # [wrong rows], fp64: log-sum minus the right one


def make_call(device: Device, operands: Operands) -> MaxSum | SteadySumError:
    """One call; what a policy raised is a result. Anything else that is raised is no result of the device."""
    try:
        return device.linear_max_sum(operands.input, operands.weight)
    except SteadySumError as error:
        if device.last is None or error is not device.last.error:
            raise
        return error


def judge_call(
    expected: MaxSum,  # of the fault-free call
    seen: MaxSum | SteadySumError,
) -> Judged:
    """The outcome by the design's definitions."""
    if isinstance(seen, SteadySumError):
        return Judged(Outcome.RAISED)
    if all(map(bits_equal, expected, seen)):
        return Judged(Outcome.RIGHT)
    off = torch.maximum(
        absolute_deviation(expected.max, seen.max), absolute_deviation(_log_sum(expected), _log_sum(seen))
    )
    wrong = (_raw(expected.max) != _raw(seen.max)) | (_raw(expected.sum_exp) != _raw(seen.sum_exp))
    largest = float(off.max())
    change = (_log_sum(seen) - _log_sum(expected))[wrong]
    return Judged(Outcome.DEVIATES if largest > THRESHOLD else Outcome.DIFFERS, largest, wrong, change)


def _log_sum(statistics: MaxSum) -> Tensor:
    return statistics.max.double() + statistics.sum_exp.double().log()


def _raw(values: Tensor) -> Tensor:
    return values.view(torch.int32)
