"""Addresses at which metrics are served, and the reading of what is there. Not here: the serving (exporter.py)."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from steadysum.errors import MetricsAddressError, RangeError

if TYPE_CHECKING:
    from steadysum.monitor.extra import core

__all__ = ["HOST", "PORT", "SCHEMES", "checked_port", "fetch_metrics"]

HOST: Final = "127.0.0.1"  # metrics name operators, files and runs: nobody else sees them unless the user says so
PORT: Final = 9855  # not taken in Prometheus's list of exporters' ports at the time of writing
SCHEMES: Final = ("http://", "https://")
_HIGHEST: Final = 65535
_PATIENCE: Final = 10.0  # seconds: Prometheus's own default for a scrape
_MOST: Final = 2**26  # bytes: a thousand times what a process serves


def checked_port(port: Any) -> int:
    """A port's number.

    Raises:
        RangeError: it is none.

    >>> checked_port(0)
    0
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _HIGHEST:
        raise RangeError("port", repr(port), f"an integer from 0 to {_HIGHEST}", "0 takes any port that is free.")
    return port


def fetch_metrics(address: str) -> list[core.Metric]:
    """The metrics that are served at an address.

    Args:
        address: http://host:port/metrics.

    Raises:
        MetricsAddressError: nobody answers there, or not with metrics' HTTP.
        MetricsFileError: what is served isn't steadysum's metrics.
    """
    from steadysum.monitor.metrics_file import parse_metrics

    try:
        if not address.startswith(SCHEMES):  # urllib would open files, too
            raise ValueError("no http:// or https:// at its begin")
        with urllib.request.urlopen(address, timeout=_PATIENCE) as answer:
            text = answer.read(_MOST).decode()
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no URL, or no text
        reason = getattr(error, "reason", None) or error
        raise MetricsAddressError(
            f"metrics at {address}",
            seen=getattr(reason, "strerror", None) or str(reason) or type(error).__name__,
            allowed="the address of a run that is monitored, or of `steadysum monitor serve`",
            remedy="steadysum.monitor.start() in the run serves them; a run that has ended leaves its file alone.",
        ) from None
    return parse_metrics(text, address)
