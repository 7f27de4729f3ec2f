"""`steadysum emulate`: the operator on an emulated many-core device, under load and faults: how often is it wrong?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.progress import Progress

from steadysum.cli import options
from steadysum.cli.terminal import Watcher, interruptible, progress_bar, stdout
from steadysum.diagnosis.arguments import parse_dtype, parse_shape
from steadysum.diagnosis.document import write_json
from steadysum.diagnosis.emulation.arguments import load_of, parse_faults, parse_tile, settings_of
from steadysum.diagnosis.emulation.campaign import run_campaign
from steadysum.diagnosis.emulation.document import emulation_document
from steadysum.diagnosis.emulation.file import CallWriter, SavedCalls
from steadysum.diagnosis.emulation.plan import CALLS, MOST_INPUTS, EmulationPlan
from steadysum.diagnosis.emulation.replay import replay_document, replay_file
from steadysum.diagnosis.emulation.report import render_emulation, render_hazards, render_replay
from steadysum.diagnosis.emulation.tally import EmulationReport
from steadysum.errors import OptionError

BESIDE_REPLAY = ("replay", "json")

Calls = Annotated[int, typer.Option(min=1, help="Calls of the operator. 2000 give the rate to about one per cent.")]
Shape = Annotated[str, typer.Option(metavar="N,H,V", help="Rows, hidden size, vocabulary.")]
Dtype = Annotated[str, typer.Option(metavar="fp32|bf16|fp16", help="Of the operands.")]
LogitsDtype = Annotated[
    str | None,
    typer.Option(metavar="bf16|fp16", help="Round logits to it, as older chips do.", show_default=False),
]
Inputs = Annotated[
    int,
    typer.Option(
        min=1, max=MOST_INPUTS, help="Sets of operands that calls take in turn. With 1, old values are right ones."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32, help="Of operands, times, orders and faults.")]
Scheduler = Annotated[
    str, typer.Option(metavar="clock|random|pct", help="A virtual clock with its load, or schedules without times.")
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="MS", help="sync_wait_timeout, in milliseconds.", show_default="2000"),
]
Retries = Annotated[int | None, typer.Option(help="max_retries.", show_default="3")]
NoAsync = Annotated[bool, typer.Option("--no-async", help="enable_async = false: no pipelining in a core.")]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "--settings", metavar="FILE.ini", help="Settings, section [GE].", show_default=False, dir_okay=False
    ),
]
Profile = Annotated[
    str | None, typer.Option(metavar="NAME", help="Settings: training, inference or batch.", show_default=False)
]
Save = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Save every call, to be replayed.", show_default=False, dir_okay=False),
]
Replay = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Replay saved calls, and nothing else.",
        show_default=False,
        dir_okay=False,
    ),
]
HazardsInFull = Annotated[bool, typer.Option("--hazards", help="Print the newest deviating call's reports in full.")]
Tile = Annotated[str, typer.Option(metavar="ROWS,COLUMNS", help="Size of a tile.", hidden=True)]


def emulate(
    context: typer.Context,
    cores: options.Cores = None,
    policy: options.Policy = None,
    load: options.Load = None,
    fault: options.Faults = None,
    calls: Calls = CALLS,
    shape: Shape = "1024,256,512",
    dtype: Dtype = "fp32",
    logits_dtype: LogitsDtype = None,
    inputs: Inputs = 2,
    seed: Seed = 0,
    scheduler: Scheduler = "clock",
    timeout: Timeout = None,
    retries: Retries = None,
    no_async: NoAsync = False,
    settings: SettingsFile = None,
    profile: Profile = None,
    save: Save = None,
    replay: Replay = None,
    hazards: HazardsInFull = False,
    json: options.Json = None,
    tile: Tile = "128,256",
) -> None:
    """Run the operator on an emulated many-core device, and count the calls that deviate.

    The vendor's kernel runs as programs of cores that exchange partial results; every call is compared with the
    fault-free one. The default is the field report's shape, policy and load. A plan and its seed give the same calls,
    bit for bit. The newest deviating call is recorded for `steadysum trace`.

    Exit code: 0 no call deviates or raises, 1 some does (or a replay differs), 2 could not run, was stopped (Ctrl-C)
    before any did, an armed fault never acted, or a replayed file has fewer calls than its plan.
    """
    if replay is not None:
        _refuse_others(context)
        _replay(replay, json)
    plan = EmulationPlan(
        shape=parse_shape(shape),
        settings=settings_of(policy, timeout, retries, no_async, settings, profile),
        load=load_of(load, scheduler),
        faults=parse_faults(fault),
        calls=calls,
        seed=seed,
        scheduler=scheduler,
        inputs=inputs,
        dtype=parse_dtype(dtype),
        logits_dtype=None if logits_dtype is None else parse_dtype(logits_dtype),
        geometry=parse_tile(tile),
        **({} if cores is None else {"cores": cores}),
    )
    with (
        nullcontext() if save is None else CallWriter(save, plan) as writer,
        interruptible() as interrupted,
        progress_bar() as progress,
    ):
        watcher = _Watcher(progress, interrupted, json)
        report = run_campaign(plan, watcher, None if writer is None else writer.made)
    if hazards:
        stdout.print(render_hazards(report))
        stdout.print()
    stdout.print(render_emulation(report))
    raise typer.Exit(report.exit_code)


def _replay(path: Path, json: Path | None) -> NoReturn:
    saved = SavedCalls(path)
    with interruptible() as interrupted, progress_bar() as progress:
        task = progress.add_task("replaying", total=saved.plan.calls)
        report = replay_file(saved, interrupted, lambda: progress.advance(task))
    if json is not None:
        write_json(replay_document(report, path), json)
    stdout.print(render_replay(report))
    raise typer.Exit(report.exit_code)


def _refuse_others(context: typer.Context) -> None:
    """A replay's plan is the file's: what else is asked for would be ignored in silence."""
    given = [
        name
        for name in context.params
        if name not in BESIDE_REPLAY and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise OptionError(
            "options beside --replay", names, "--json alone", "The file has the whole plan; leave the others out."
        )


class _Watcher(Watcher):
    """Writes the JSON file now and then."""

    def __init__(self, progress: Progress, interrupted: Callable[[], bool], json: Path | None) -> None:
        super().__init__(progress, interrupted)
        self._json = json

    def found(self, report: EmulationReport) -> None:
        if self._json is not None:
            write_json(emulation_document(report), self._json)
