"""Monitor: what guarded calls and syncs are doing, as metrics for Prometheus; alert rules and a dashboard for them.

    metrics.py   notices counted               peaks.py         the longest of the last minutes
    labels.py    what tells processes apart    process.py       start: this process counts, serves and writes
    exporter.py  metrics over HTTP             metrics_file.py  a process's file
    address.py   where metrics are served      files.py         files of many processes, served as one
    figures.py   what metrics come to          table.py         figures for people, and as JSON
    packaged.py  rules/ and dashboard/

Needs the extra `monitor` (prometheus-client), which is loaded with the first name that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from steadysum.monitor.labels import process_labels
    from steadysum.monitor.metrics_file import read_metrics
    from steadysum.monitor.packaged import alert_rules, dashboard
    from steadysum.monitor.process import Monitor, start

__all__ = ["Monitor", "alert_rules", "dashboard", "process_labels", "read_metrics", "start"]

_HOMES: Final = {
    "Monitor": "process",
    "alert_rules": "packaged",
    "dashboard": "packaged",
    "process_labels": "labels",
    "read_metrics": "metrics_file",
    "start": "process",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
