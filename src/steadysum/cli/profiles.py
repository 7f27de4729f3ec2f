"""`steadysum profiles`: the profiles with their promises, and what they keep of them on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from steadysum.cli import options
from steadysum.cli.terminal import Watcher, interruptible, progress_bar, stdout
from steadysum.diagnosis.document import write_json
from steadysum.diagnosis.profiles.document import profiles_document
from steadysum.diagnosis.profiles.measure import Measurement, measure
from steadysum.diagnosis.profiles.plan import RATES, MeasurePlan
from steadysum.diagnosis.profiles.report import render_measurement, render_profiles

Measure = Annotated[bool, typer.Option("--measure", help="Measure them under armed faults: an hour, in full.")]
Rates = Annotated[
    list[float] | None,
    typer.Option("--rate", metavar="PERCENT", help="Share of calls with a fault. Repeatable.", show_default="5 and 10"),
]
Calls = Annotated[
    int | None,
    typer.Option(min=1, help="Of each campaign.", show_default="as many as the promise takes"),
]
Device = Annotated[str, typer.Option(metavar="emulated|native|both", help="What to measure.")]
Save = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Also write it as JSON.", show_default=False, dir_okay=False)
]


def profiles(
    measured: Measure = False,
    rate: Rates = None,
    calls: Calls = None,
    device: Device = "both",
    save: Save = None,
    seed: options.Seed = 0,
) -> None:
    """Show the settings that each profile stands for, and what the field report promises of it.

    With --measure: calls under armed faults, on the emulated device and by the native kernel, and clean calls beside
    unguarded ones. Faults in the native kernel need the build with traps (`make traps`). Ctrl-C ends it with what there
    is.

    Exit code: 0 measured, whatever came of it; 2 could not run, or was stopped.
    """
    if not measured:
        stdout.print(render_profiles())
        return
    rates = tuple(percent / 100.0 for percent in rate) if rate else RATES
    plan = MeasurePlan(device=device, rates=rates, calls=calls, seed=seed)
    command = " ".join(["steadysum", *sys.argv[1:]])

    def found(measurement: Measurement) -> None:
        if save is not None:
            write_json(profiles_document(measurement, command), save)

    with interruptible() as interrupted, progress_bar() as progress:
        measurement = measure(plan, Watcher(progress, interrupted), found)
    stdout.print(render_measurement(measurement))
    raise typer.Exit(0 if measurement.complete else 2)
