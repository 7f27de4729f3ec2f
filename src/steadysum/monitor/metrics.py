"""Metrics: the notices of a process, counted, in a registry of their own.

Names are Prometheus's: base units, counters ending in _total. A series is there with 0 before anything is counted in
it, as soon as its operator, check or point is known: Prometheus sees no increase in a series that begins at 1.

Not here: who hears the notices (process.py), how they are shown (exporter.py, metrics_file.py, table.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import torch

from steadysum.monitor.extra import client, core
from steadysum.monitor.peaks import Peaks
from steadysum.notices import Notice

__all__ = ["ATTRIBUTIONS", "BUNDLE_OUTCOMES", "CALL_OUTCOMES", "CHECK_OUTCOMES", "SYNC_OUTCOMES", "Metrics"]

# The values that notices.py and the guard give these labels. Another value is counted too, without a 0 before it.
CALL_OUTCOMES: Final = ("clean", "healed", "fallback", "raised")
CHECK_OUTCOMES: Final = ("passed", "failed")
ATTRIBUTIONS: Final = ("transient", "persistent", "application", "undecided")
BUNDLE_OUTCOMES: Final = ("written", "failed", "dropped")
SYNC_OUTCOMES: Final = ("ok", "timeout", "stale", "dead")
# Seconds: from a microsecond (a flag that is set already) to beyond the profiles' sync_wait_timeout of 2 and 3 s.
SYNC_BUCKETS: Final = (1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)


class _Sync(NamedTuple):
    """The series of one sync point and outcome."""

    waits: client.Counter
    durations: client.Histogram


class Metrics:
    """What was counted; a collector of prometheus_client that adds the process's labels to every series.

    Args:
        labels: of this process; added to every series.
        version: of steadysum, for the information metric.

    >>> metrics = Metrics({"rank": "0"}, "0.1.0")
    >>> metrics.hear(Notice("healed_tile", {"operator": "linear_max_sum"}, 2.0))
    >>> [line for line in metrics.text().splitlines() if line.startswith("steadysum_healed")]
    ['steadysum_healed_tiles_total{operator="linear_max_sum",rank="0"} 2.0']
    """

    def __init__(self, labels: Mapping[str, str], version: str) -> None:
        self.labels = dict(labels)
        registry = self._registry = client.CollectorRegistry()
        self._operators: set[str] = set()
        self._checks: set[tuple[str, str]] = set()
        self._syncs: dict[tuple[str, str], _Sync] = {}  # hundreds in one call of the emulated device: looked up once
        self._hearers: Mapping[str, Callable[[Notice], None]] = {
            "call": self._call,
            "check": self._check,
            "anomaly": self._anomaly,
            "retry": lambda notice: self._count(self.retries, notice),
            "fallback": lambda notice: self._count(self.fallbacks, notice),
            "healed_tile": lambda notice: self._count(self.healed_tiles, notice),
            "bundle": self._bundle,
            "sync": self._sync,
        }

        def counter(name: str, help: str, *names: str) -> client.Counter:
            return client.Counter(name, help, names, registry=registry)

        def gauge(name: str, help: str) -> client.Gauge:
            return client.Gauge(name, help, registry=registry)

        self.calls = counter("steadysum_calls", "Guarded calls.", "operator", "outcome")
        self.checks = counter("steadysum_checks", "Checks of results.", "operator", "check", "outcome")
        self.check_durations = client.Summary(
            "steadysum_check_duration_seconds", "Time that checks took.", ("operator", "check"), registry=registry
        )
        self.anomalies = counter(
            "steadysum_anomalies", "Results that failed a check.", "operator", "check", "attribution"
        )
        self.retries = counter("steadysum_retries", "Calls that were run again.", "operator")
        self.fallbacks = counter("steadysum_fallbacks", "Results taken from a fallback.", "operator", "to")
        self.healed_tiles = counter("steadysum_healed_tiles", "Tiles that were computed again.", "operator")
        self.bundles = counter("steadysum_bundles", "Bundles of evidence.", "operator", "outcome")
        self.bundle_bytes = counter("steadysum_bundle_written_bytes", "Size of the bundles written.", "operator")
        self.syncs = counter("steadysum_sync", "Waits at sync points.", "point", "outcome")
        self.sync_durations = client.Histogram(
            "steadysum_sync_duration_seconds",
            "Time that waits at sync points took.",
            ("point",),
            registry=registry,
            buckets=SYNC_BUCKETS,
        )
        self.sync_peaks = Peaks(
            "steadysum_sync_duration_peak_seconds", "Longest wait at a sync point in the last 5 to 10 minutes.", "point"
        )
        registry.register(self.sync_peaks)
        self.last_call = gauge(
            "steadysum_last_call_timestamp_seconds",
            "When the last guarded call ended; before the first one, when the monitor was made.",
        )
        self.last_call.set(time.time())
        gauge(
            "steadysum_written_timestamp_seconds", "When these figures were served, or written to their file."
        ).set_function(time.time)
        self.running = gauge("steadysum_monitor_running", "1 while the process is monitored, 0 once that has ended.")
        self.file_failures = counter(
            "steadysum_metrics_file_write_failures", "Times that the metrics file could not be written."
        )
        information = client.Info("steadysum_build", "Versions that run.", registry=registry)
        information.info({"version": version, "torch": torch.__version__})

    def hear(self, notice: Notice) -> None:
        """Counts a notice; a kind that isn't known is left alone."""
        hearer = self._hearers.get(notice.kind)
        if hearer is not None:
            hearer(notice)

    def collect(self) -> Iterator[core.Metric]:
        """All families, each series with the process's labels; without the client's own `_created` series."""
        for family in self._registry.collect():
            copy = core.Metric(family.name, family.documentation, family.type)
            copy.samples = [
                sample._replace(labels={**sample.labels, **self.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield copy

    def text(self) -> str:
        """All metrics in Prometheus's text format."""
        registry = client.CollectorRegistry()
        registry.register(self)
        return client.generate_latest(registry).decode()

    # ---- one for each kind that isn't counted plainly -----------------------------------------------------------

    def _count(self, counter: client.Counter, notice: Notice) -> None:
        self._meet_operator(notice.labels["operator"])
        counter.labels(**notice.labels).inc(notice.value)

    def _call(self, notice: Notice) -> None:
        self._count(self.calls, notice)
        self.last_call.set(time.time())

    def _check(self, notice: Notice) -> None:
        operator, check = notice.labels["operator"], notice.labels["check"]
        self._meet_check(operator, check)
        self.checks.labels(**notice.labels).inc()
        self.check_durations.labels(operator=operator, check=check).observe(notice.value)

    def _anomaly(self, notice: Notice) -> None:
        self._meet_check(notice.labels["operator"], notice.labels["check"])
        self._count(self.anomalies, notice)

    def _bundle(self, notice: Notice) -> None:
        operator, outcome = notice.labels["operator"], notice.labels["outcome"]
        self._meet_operator(operator)
        self.bundles.labels(**notice.labels).inc()
        if outcome == "written":
            self.bundle_bytes.labels(operator=operator).inc(notice.value)

    def _sync(self, notice: Notice) -> None:
        point, outcome = notice.labels["point"], notice.labels["outcome"]
        series = self._syncs.get((point, outcome)) or self._meet_sync(point, outcome)
        series.waits.inc()
        series.durations.observe(notice.value)
        self.sync_peaks.saw(point, notice.value)

    # ---- series with 0 in them ----------------------------------------------------------------------------------

    def _meet_operator(self, operator: str) -> None:
        if operator in self._operators:
            return
        self._operators.add(operator)
        for outcome in CALL_OUTCOMES:
            self.calls.labels(operator=operator, outcome=outcome)
        for outcome in BUNDLE_OUTCOMES:
            self.bundles.labels(operator=operator, outcome=outcome)
        for counter in (self.retries, self.healed_tiles, self.bundle_bytes):
            counter.labels(operator=operator)

    def _meet_check(self, operator: str, check: str) -> None:
        if (operator, check) in self._checks:
            return
        self._checks.add((operator, check))
        self._meet_operator(operator)
        for outcome in CHECK_OUTCOMES:
            self.checks.labels(operator=operator, check=check, outcome=outcome)
        for attribution in ATTRIBUTIONS:
            self.anomalies.labels(operator=operator, check=check, attribution=attribution)

    def _meet_sync(self, point: str, outcome: str) -> _Sync:
        durations = self.sync_durations.labels(point=point)
        for known in (*SYNC_OUTCOMES, outcome):
            self._syncs[point, known] = _Sync(self.syncs.labels(point=point, outcome=known), durations)
        return self._syncs[point, outcome]
