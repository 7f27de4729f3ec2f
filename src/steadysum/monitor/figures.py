"""Figures: what a process's metrics come to, by operator, check and sync point. Not here: how they look (table.py)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from steadysum.monitor.extra import core
from steadysum.monitor.labels import IDENTITY

__all__ = ["CheckFigures", "OperatorFigures", "ProcessFigures", "SyncFigures", "figures_of"]

_Samples = Mapping[str, list[core.Sample]]


@dataclass(frozen=True)
class OperatorFigures:
    """What happened to the calls of an operator."""

    operator: str
    calls: dict[str, int]  # by outcome
    retries: int
    fallbacks: dict[str, int]  # by what the results were taken from
    healed_tiles: int
    bundles: dict[str, int]  # by outcome


@dataclass(frozen=True)
class CheckFigures:
    """What a check found of an operator's results."""

    operator: str
    check: str
    outcomes: dict[str, int]
    anomalies: dict[str, int]  # by attribution
    seconds: float  # of all its runs together

    @property
    def mean_seconds(self) -> float:
        """Of one run; nan where there was none."""
        runs = sum(self.outcomes.values())
        return self.seconds / runs if runs else math.nan


@dataclass(frozen=True)
class SyncFigures:
    """What happened at a sync point."""

    point: str
    outcomes: dict[str, int]
    seconds: float  # of all waits together
    p99: float  # seconds: an upper bound of it, the bucket's in which it lies; inf above the highest, nan of no waits
    peak: float  # seconds: the longest of the last minutes

    @property
    def waits(self) -> int:
        """All of them."""
        return sum(self.outcomes.values())

    @property
    def success_rate(self) -> float:
        """Share of the waits that ended well; nan where there was none."""
        return self.outcomes.get("ok", 0) / self.waits if self.waits else math.nan


@dataclass(frozen=True)
class ProcessFigures:
    """All of one process."""

    labels: dict[str, str]
    is_running: bool  # it hadn't ended by itself when its figures were written
    written: float  # seconds since 1970: when that was
    operators: tuple[OperatorFigures, ...]
    checks: tuple[CheckFigures, ...]
    syncs: tuple[SyncFigures, ...]


def figures_of(families: Iterable[core.Metric]) -> list[ProcessFigures]:
    """The figures of each process in some metrics, ordered by run, rank and pid; numbers by their size.

    Args:
        families: of one process or of many, as `read_metrics` gives them.

    Returns:
        Empty if there are none.
    """
    samples: defaultdict[str, list[core.Sample]] = defaultdict(list)
    for family in families:
        for sample in family.samples:
            samples[sample.name].append(sample)
    processes = []
    for sample in samples["steadysum_monitor_running"]:
        own = sample.labels.items()
        of_process = {name: [one for one in found if own <= one.labels.items()] for name, found in samples.items()}
        processes.append(_process(dict(sample.labels), of_process))
    return sorted(processes, key=lambda process: [_ordered(process.labels.get(name, "")) for name in IDENTITY])


def _process(labels: dict[str, str], samples: _Samples) -> ProcessFigures:
    operators = _values(samples, "steadysum_calls_total", "operator")
    checks = sorted(
        {(one.labels["operator"], one.labels["check"]) for one in samples.get("steadysum_checks_total", ())}
    )
    points = _values(samples, "steadysum_sync_total", "point")
    return ProcessFigures(
        labels=labels,
        is_running=_sum(samples, "steadysum_monitor_running") == 1,
        written=_sum(samples, "steadysum_written_timestamp_seconds"),
        operators=tuple(_operator(samples, operator) for operator in operators),
        checks=tuple(_check(samples, operator, check) for operator, check in checks),
        syncs=tuple(_sync(samples, point) for point in points),
    )


def _operator(samples: _Samples, operator: str) -> OperatorFigures:
    return OperatorFigures(
        operator,
        calls=_by(samples, "steadysum_calls_total", "outcome", operator=operator),
        retries=int(_sum(samples, "steadysum_retries_total", operator=operator)),
        fallbacks=_by(samples, "steadysum_fallbacks_total", "to", operator=operator),
        healed_tiles=int(_sum(samples, "steadysum_healed_tiles_total", operator=operator)),
        bundles=_by(samples, "steadysum_bundles_total", "outcome", operator=operator),
    )


def _check(samples: _Samples, operator: str, check: str) -> CheckFigures:
    where = {"operator": operator, "check": check}
    return CheckFigures(
        operator,
        check,
        outcomes=_by(samples, "steadysum_checks_total", "outcome", **where),
        anomalies=_by(samples, "steadysum_anomalies_total", "attribution", **where),
        seconds=_sum(samples, "steadysum_check_duration_seconds_sum", **where),
    )


def _sync(samples: _Samples, point: str) -> SyncFigures:
    buckets = _by(samples, "steadysum_sync_duration_seconds_bucket", "le", point=point)
    return SyncFigures(
        point,
        outcomes=_by(samples, "steadysum_sync_total", "outcome", point=point),
        seconds=_sum(samples, "steadysum_sync_duration_seconds_sum", point=point),
        p99=_upper_bound(sorted((float(bound), count) for bound, count in buckets.items()), 0.99),
        peak=_sum(samples, "steadysum_sync_duration_peak_seconds", point=point),
    )


def _upper_bound(buckets: list[tuple[float, int]], quantile: float) -> float:
    """The bound of the bucket in which a quantile lies; buckets hold all that is at most their bound."""
    if not buckets or not buckets[-1][1]:
        return math.nan
    return next(bound for bound, count in buckets if count >= quantile * buckets[-1][1])


def _matching(samples: _Samples, name: str, where: Mapping[str, str]) -> list[core.Sample]:
    return [sample for sample in samples.get(name, ()) if where.items() <= sample.labels.items()]


def _sum(samples: _Samples, name: str, **where: str) -> float:
    return float(sum(sample.value for sample in _matching(samples, name, where)))


def _by(samples: _Samples, name: str, label: str, **where: str) -> dict[str, int]:
    return {sample.labels[label]: int(sample.value) for sample in _matching(samples, name, where)}


def _values(samples: _Samples, name: str, label: str) -> list[str]:
    """In the order in which they were first met."""
    return list(dict.fromkeys(sample.labels[label] for sample in samples.get(name, ())))


def _ordered(value: str) -> tuple[int, str]:
    return (int(value), "") if value.isdecimal() else (0, value)
