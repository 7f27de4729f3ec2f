"""`steadysum monitor`: what monitored runs have counted: served to Prometheus, as a table, with alert rules."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from steadysum.cli import options
from steadysum.cli.terminal import interruptible, stderr, stdout
from steadysum.diagnosis.document import write_json
from steadysum.monitor.address import HOST, PORT, SCHEMES, fetch_metrics
from steadysum.monitor.packaged import save_packaged

_PAUSE: Final = 0.2  # seconds between two looks for Ctrl-C

app = typer.Typer(
    help="Serve or show what monitored runs have counted. steadysum.monitor.start() in a run monitors it.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Sources = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Metrics files, or folders of them.", show_default=False)
]
Seen = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE|URL]...",
        help=f"Metrics files, folders of them, or where metrics are served.  [default: http://{HOST}:{PORT}/metrics]",
        show_default=False,
    ),
]
Folder = Annotated[Path, typer.Argument(help="It is made if it isn't there.", file_okay=False, show_default=False)]
Host = Annotated[str, typer.Option(help="Address to serve at. 0.0.0.0: every one that this machine has.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")]


@app.command()
def serve(files: Sources, host: Host = HOST, port: Port = PORT) -> None:
    """Serve the metrics files of runs to Prometheus, read anew for each scrape, until Ctrl-C."""
    from steadysum.monitor.exporter import Exporter
    from steadysum.monitor.files import MetricsFiles

    exporter = Exporter(MetricsFiles(files), host, port)
    try:
        with interruptible() as interrupted:
            stdout.print(Text(f"serving at {exporter.address}, until Ctrl-C"), soft_wrap=True)
            while not interrupted():
                time.sleep(_PAUSE)
    finally:
        exporter.close()


@app.command()
def show(sources: Seen = None, json: options.Json = None) -> None:
    """A table of the present figures: calls, checks, anomalies and syncs of each process."""
    from steadysum.monitor.figures import figures_of
    from steadysum.monitor.table import figures_document, process_view

    processes = figures_of(_families(sources or [f"http://{HOST}:{PORT}/metrics"]))
    if json is not None:
        write_json(figures_document(processes), json)
    for number, process in enumerate(processes):
        if number:
            stdout.print()
        stdout.print(process_view(process))
    if not processes:
        stdout.print("no metrics files there")


@app.command()
def save(folder: Folder) -> None:
    """Write the alert rules for Prometheus, their tests, and the dashboard for Grafana to a folder."""
    for path in save_packaged(folder):
        stdout.print(Text(f"written to {path}"), soft_wrap=True)


def _families(sources: list[str]) -> list[Any]:
    """Of all sources; a file of a folder that can't be read is left out, and said so."""
    from steadysum.monitor.files import MetricsFiles

    families = [family for source in sources if source.startswith(SCHEMES) for family in fetch_metrics(source)]
    for contents in MetricsFiles([source for source in sources if not source.startswith(SCHEMES)]).read():
        families += contents.families
        if contents.error is not None:
            stderr.print(Text(f"left out: {contents.error}", style="yellow"), soft_wrap=True)
    return families
