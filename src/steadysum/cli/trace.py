"""`steadysum trace`: what a recorded run did: its events, waits, sync latency, timeline; and its export."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from steadysum.cli import options
from steadysum.cli.terminal import interruptible, stdout
from steadysum.diagnosis.document import write_json
from steadysum.sync.hazard_report import marks
from steadysum.sync.hazards import find_hazards
from steadysum.trace.chrome import chrome_text
from steadysum.trace.files import write_whole
from steadysum.trace.highlights import Highlight
from steadysum.trace.json_lines import load_trace, to_json_lines
from steadysum.trace.latency import latency_document, latency_of, latency_tables
from steadysum.trace.recorder import Trace
from steadysum.trace.text_timeline import text_timeline
from steadysum.trace.timeline import draw_timeline
from steadysum.trace.views import LIMIT, Filter, events_view, filtered, sync_view
from steadysum.trace.watching import follow, trace_file

app = typer.Typer(
    help="Show what a recorded run did. FILE is a saved trace; left out, it is the newest that was recorded.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    """What a trace is exported as."""

    chrome = "chrome"
    jsonl = "jsonl"


File = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A saved trace.", show_default=False)]
Core = Annotated[int | None, typer.Option(help="Of this core alone.", show_default=False)]
Phase = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of this phase alone: the begin of its name.", show_default=False)
]
Action = Annotated[str | None, typer.Option(metavar="NAME", help="Of this kind alone.", show_default=False)]
Limit = Annotated[int, typer.Option(min=1, help="Most events to show.")]
Watch = Annotated[bool, typer.Option("--watch", help="Follow the newest trace, until Ctrl-C.")]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE.svg|png",
        help="Draw it to a file, instead of here.",
        show_default=False,
        dir_okay=False,
    ),
]
Output = Annotated[Path, typer.Option("--output", metavar="FILE", help="Where to write it.", dir_okay=False)]
As = Annotated[Format, typer.Option("--format", help="chrome opens in Perfetto; jsonl is steadysum's own.")]


@app.command()
def events(
    file: File = None,
    core: Core = None,
    phase: Phase = None,
    action: Action = None,
    limit: Limit = LIMIT,
    watch: Watch = False,
) -> None:
    """Every event, in the order in which they took effect."""
    wanted = Filter(core, phase, action)
    _show(file, watch, lambda trace: events_view(filtered(trace, wanted), limit))


@app.command()
def sync(file: File = None, core: Core = None, phase: Phase = None, watch: Watch = False) -> None:
    """How long each core waited, at each sync point."""
    wanted = Filter(core, phase)
    _show(file, watch, lambda trace: sync_view(filtered(trace, wanted)))


@app.command()
def latency(file: File = None, json: options.Json = None, watch: Watch = False) -> None:
    """The latency of each sync point, and which core comes last."""

    def view(trace: Trace) -> RenderableType:
        found = latency_of(trace)
        if json is not None:
            write_json(latency_document(found), json)
        return latency_tables(found)

    _show(file, watch, view)


@app.command()
def timeline(file: File = None, output: Picture = None, watch: Watch = False) -> None:
    """What each unit did when, and which reads came too early; as SVG or PNG with --output."""

    def view(trace: Trace) -> RenderableType:
        if output is None:
            return text_timeline(trace, _highlights(trace), stdout.width)
        return Text(f"drawn to {draw_timeline(trace, output, _highlights(trace))}")

    _show(file, watch, view)


@app.command()
def export(output: Output, file: File = None, format: As = Format.chrome) -> None:
    """Write the trace for another program: Perfetto or chrome://tracing, or as JSON lines."""
    trace = load_trace(trace_file(file))
    write_whole(output, chrome_text(trace) if format is Format.chrome else to_json_lines(trace))
    stdout.print(Text(f"{len(trace.events)} events written to {output}"), soft_wrap=True)


def _show(file: Path | None, watch: bool, view: Callable[[Trace], RenderableType]) -> None:
    if not watch:
        path = trace_file(file)
        stdout.print(view(load_trace(path)))
        stdout.print(Text(f"from {path}", style="dim"), soft_wrap=True)
        return
    nothing = True
    with (
        interruptible() as interrupted,
        Live(Text("waiting for a trace"), console=stdout, refresh_per_second=4) as live,
    ):
        for _, trace in follow(file, interrupted):
            nothing = False
            live.update(view(trace), refresh=True)
    if nothing:
        load_trace(trace_file(file))  # raises: there is none


def _highlights(trace: Trace) -> list[Highlight]:
    """What went wrong in each launch; of a launch whose first events were dropped nothing can be said."""
    starts = [place for place, event in enumerate(trace.events) if event.number == 0]
    found: list[Highlight] = []
    for start, end in zip(starts, [*starts[1:], len(trace.events)], strict=True):
        for mark in marks(find_hazards(trace.events[start:end])):
            found.append(Highlight(mark.reader_event + start, mark.writer_event + start, mark.text))
    return found
