"""How much slower one set of runs is than another: the ratio of their median times, with an interval.

For runs that weren't made in pairs, such as a mitigation's and its baseline's. Not for times taken in turn, whose
ratios are taken round by round: those are in steadysum.timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from steadysum.diagnosis.rates import CONFIDENCE
from steadysum.diagnosis.statistics.question import check_open_unit
from steadysum.errors import RangeError
from steadysum.timing import RESAMPLES

__all__ = ["LEAST_RUNS", "Slowdown", "slowdown"]

# The least number of runs of a set for which the range of the set holds the median in 95 % of cases: 1 - 2 * 0.5 ** n.
# From fewer runs the bootstrap, which stays within the range, can't give an interval.
LEAST_RUNS: Final = 6


class Slowdown(NamedTuple):
    """Median time over the baseline's median time, with its interval; 1: as fast."""

    ratio: float
    low: float
    high: float

    @property
    def changes_timing(self) -> bool:
        """Whether the times differ beyond doubt: a fault that depends on timing may have gone for that reason alone."""
        return not self.low <= 1.0 <= self.high


def slowdown(
    baseline: Sequence[float], changed: Sequence[float], confidence: float = CONFIDENCE, seed: int = 0
) -> Slowdown:
    """The ratio of the medians, with its percentile bootstrap interval.

    Args:
        baseline: seconds of each run, all above 0.
        changed: seconds of each run of what is compared to it.
        confidence: of the interval, in (0, 1).
        seed: of the resampling.

    Raises:
        RangeError: fewer than LEAST_RUNS runs in a set, a time that isn't above 0 and finite, or confidence outside of
            (0, 1).

    Source: Efron, Annals of Statistics 7 (1979). The two sets are resampled independently of each other.

    >>> slowdown(baseline=[2.0] * 6, changed=[3.0] * 6)
    Slowdown(ratio=1.5, low=1.5, high=1.5)
    """
    check_open_unit("confidence", confidence)
    own, base = _times("times", changed), _times("times of the baseline", baseline)
    generator = np.random.default_rng(seed)
    ratios = _resampled_medians(own, generator) / _resampled_medians(base, generator)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(ratios, (tail, 1.0 - tail))
    return Slowdown(float(np.median(own) / np.median(base)), float(low), float(high))


def _resampled_medians(times: npt.NDArray[Any], generator: np.random.Generator) -> npt.NDArray[Any]:
    """Medians of RESAMPLES samples with replacement, without drawing the samples: memory doesn't grow with the runs.

    A sample's order statistics are those of uniform numbers on [0, 1), looked up among the sorted times; the middle one
    of n uniform numbers has a beta distribution, and the next, given that one, is the least of those above it.
    """
    runs = times.size
    middle = (runs + 1) // 2
    lower = generator.beta(middle, runs + 1 - middle, RESAMPLES)
    upper = lower
    if runs % 2 == 0:
        upper = lower + (1.0 - lower) * generator.beta(1, runs - middle, RESAMPLES)
    ordered = np.sort(times)
    places = (np.minimum((uniform * runs).astype(np.int64), runs - 1) for uniform in (lower, upper))
    return np.asarray(sum(ordered[place] for place in places) / 2.0)


def _times(what: str, seconds: Sequence[float]) -> npt.NDArray[Any]:
    times = np.asarray(seconds, dtype=np.float64)
    if times.size < LEAST_RUNS:
        raise RangeError(what, f"{times.size} runs", f"at least {LEAST_RUNS}", "Make more runs: times vary.")
    if not (np.isfinite(times) & (times > 0.0)).all():
        wrong = times[~(np.isfinite(times) & (times > 0.0))][0]
        raise RangeError(what, f"{wrong}", "seconds above 0, finite", "Use a clock that is finer than a run.")
    return times
