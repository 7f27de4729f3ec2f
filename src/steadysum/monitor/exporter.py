"""The exporter: shows metrics to Prometheus over HTTP. Not here: what is counted (metrics.py), the files (files.py)."""

from __future__ import annotations

import socket

from steadysum.errors import MetricsAddressError
from steadysum.monitor.address import HOST, PORT, checked_port
from steadysum.monitor.extra import client, registry

__all__ = ["Exporter"]


class Exporter:
    """Serves a collector's metrics in threads of its own, at every path, until it is closed.

    Args:
        collector: asked anew for each scrape.
        host: name or number of the address to listen on.
        port: 0: any that is free.

    Raises:
        MetricsAddressError: the address is taken, or none of this machine's.
        RangeError: a port that there isn't.

    >>> from steadysum.monitor.metrics import Metrics
    >>> exporter = Exporter(Metrics({"run": "train"}, "0.1.0"), port=0)
    >>> exporter.address.startswith("http://127.0.0.1:")
    True
    >>> exporter.close()
    """

    def __init__(self, collector: registry.Collector, host: str = HOST, port: int = PORT) -> None:
        own = client.CollectorRegistry()
        own.register(collector)
        port = checked_port(port)
        try:
            self._server, self._thread = client.start_http_server(port, addr=host, registry=own)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that no name server could know
            reason = getattr(error, "strerror", None) or str(error)
            raise MetricsAddressError(
                f"address {host}:{port} of the metrics",
                seen=reason,
                allowed="an address of this machine, and a port that nobody listens on",
                remedy="Choose another port; 0 takes any that is free.",
            ) from None
        name = f"[{host}]" if self._server.address_family == socket.AF_INET6 and ":" in host else host
        self.address = f"http://{name}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Ends the serving, and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def let_go(self) -> None:
        """In a forked child, which has the socket but no thread that serves it: the parent goes on."""
        self._server.socket.close()
