"""How the project measures time: contenders in turn, ratios of each round, their median and its bootstrap interval.

One process, one machine state: absolute times of two separate runs are not compared. Used by `steadysum bench` and by
benchmarks/. Says nothing about memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# The rule of the performance contract: at least 21 pairs; 7 where one call takes over a second.
ROUNDS = 21
ROUNDS_OF_SLOW_CALLS = 7
SLOW_SECONDS = 1.0
RESAMPLES = 2000  # of the bootstrap: the interval's ends then move by about a hundredth of its width between seeds


def wall_clock(call: Callable[[], object]) -> float:
    """Seconds that a call takes, by this process's clock."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Ratio(NamedTuple):
    """Median of the ratios of a contender's times to the baseline's, round by round, with a 95 % interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timings:
    """Seconds of each contender's calls; the same place in two lists is the same round."""

    seconds: dict[str, tuple[float, ...]]

    @property
    def rounds(self) -> int:
        """The number of rounds that all contenders finished."""
        return min((len(times) for times in self.seconds.values()), default=0)

    def median(self, name: str) -> float:
        """The contender's median time in seconds."""
        return float(np.median(self.seconds[name]))

    def ratio(self, name: str, baseline: str) -> Ratio:
        """The contender's time over the baseline's."""
        own, base = (np.asarray(self.seconds[key][: self.rounds]) for key in (name, baseline))
        return median_ratio(own / base)


def measure_in_turn(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progressed: Callable[[], None] = lambda: None,
    planned: Callable[[int], None] = lambda _: None,
    clock: Callable[[Callable[[], object]], float] = wall_clock,
) -> Timings:
    """Times the contenders in turn, in alternating order, after one untimed call of each.

    Args:
        contenders: what to call. Alternating order: a, b, c, then c, b, a, so that none always follows the same other.
        rounds: None for the rule above.
        stopped: asked before each round; True ends the measurement with the rounds so far.
        progressed: told after each timed call.
        planned: told the number of timed calls to come, as soon as it is known.
        clock: makes a call, and says how many seconds it took; for example by a device's own clock.
    """
    warm = [clock(call) for call in contenders.values()]
    if rounds is None:
        rounds = ROUNDS_OF_SLOW_CALLS if max(warm, default=0.0) > SLOW_SECONDS else ROUNDS
    planned(rounds * len(contenders))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(rounds):
        if stopped():
            break
        for name in order:
            times[name].append(clock(contenders[name]))
            progressed()
        order.reverse()
    return Timings({name: tuple(seconds) for name, seconds in times.items()})


def median_ratio(ratios: npt.ArrayLike, seed: int = 0) -> Ratio:
    """The median, with the percentile bootstrap's 95 % interval.

    Source: Efron, Annals of Statistics 7 (1979).

    >>> median_ratio([1.0, 1.0, 1.0])
    Ratio(median=1.0, low=1.0, high=1.0)
    """
    values = np.asarray(ratios, dtype=np.float64)
    draws = np.random.default_rng(seed).choice(values, (RESAMPLES, values.size))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return Ratio(float(np.median(values)), float(low), float(high))
