"""The package of the extra `monitor`, or an error that says how to install it. All of monitor/ takes it from here."""

from __future__ import annotations

from steadysum.errors import MissingExtraError

__all__ = ["client", "core", "parser", "registry"]

try:
    import prometheus_client as client
    from prometheus_client import core, parser, registry
except ImportError as error:
    raise MissingExtraError(
        "steadysum.monitor",
        seen=f"no package prometheus_client ({error})",
        allowed="prometheus-client >= 0.20",
        remedy="pip install 'steadysum[monitor]'.",
    ) from None
