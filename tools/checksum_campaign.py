"""Faults against verify="checksum", as many as it takes for a statement; the tables of docs/verify.md.

    STEADYSUM_TRAPS_BUILD=build/traps python tools/checksum_campaign.py [--faults N] [--checks N] [--out FILE]

Needs the build with traps (`make traps`). Takes some minutes; Ctrl-C ends it with what there is.
Not here: the campaign itself (tests/field/checksum_campaign.py).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import trap_build
from tests.field.checksum_campaign import Ratios, Tally, campaign, clean_ratios, problems

from steadysum import _extension
from steadysum.diagnosis.profiles.strikes import COVERED, MAGNITUDES, STAGES
from steadysum.diagnosis.rates import clopper_pearson

SAMPLED = ("exp", "sum")
AT_A_TIME = 5000
COUNTS = ("all", "seen", "right", "matters", "raised")
HIDDEN = (64, 768, 4096)


def main() -> int:
    """Run both campaigns and print their tables; 1 if a fault that matters wasn't healed, or a clean call alarmed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=42_000, help="that matter, in operands, logits and partials")
    parser.add_argument("--checks", type=int, default=3_000_000, help="of one row in one tile, without faults")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/checksum_campaign.json"))
    arguments = parser.parse_args()
    module = _extension.module = trap_build.load()
    torch.set_num_threads(1)  # calls are small
    console = Console(width=None if sys.stdout.isatty() else 120)
    tally, ratios = Tally(), list[Ratios]()
    try:
        with Progress(console=console, transient=True) as progress:
            faults = progress.add_task("faults that matter", total=arguments.faults)
            clean, seed = problems(module, 400, seed=1), 2
            while (matter := sum(tally.matter[stage] for stage in COVERED)) < arguments.faults:
                progress.update(faults, completed=matter)
                # Few faults in logits matter, and most in partials do: as many of each are wanted.
                wanted = [stage for stage in COVERED if tally.matter[stage] <= arguments.faults / len(COVERED)]
                tally.add_all(campaign(module, clean, AT_A_TIME, tuple(wanted), seed=seed))
                seed += 1
            tally.add_all(campaign(module, clean, 8 * AT_A_TIME, SAMPLED, seed=seed))
            checks = progress.add_task("checks without faults", total=arguments.checks)
            for found in _clean(arguments.checks):
                ratios.append(found)
                progress.update(checks, completed=sum(each.checks for each in ratios))
    except KeyboardInterrupt:
        console.print("stopped; the tables hold what there is")
    document = _document(tally, ratios)
    _show(console, document)
    arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"written: {arguments.out}", style="dim", highlight=False)
    return 1 if document["lost"] or document["alarms"] else 0


def _clean(checks: int) -> Iterator[Ratios]:
    done = seed = 0
    while done < checks:
        for hidden in HIDDEN:
            for found in clean_ratios(512, hidden, 16_000, seed=seed):
                done += found.checks
                yield found
        seed += 1


def _document(tally: Tally, ratios: list[Ratios]) -> dict[str, Any]:
    matter = sum(tally.matter[stage] for stage in COVERED)
    lost = sum(tally.lost[stage] for stage in COVERED)
    low, high = clopper_pearson(matter - lost, matter) if matter else (0.0, 1.0)
    cells = []
    for stage in STAGES:
        for magnitude in (*MAGNITUDES, None):
            count = {name: tally.cells[stage, magnitude, name] for name in COUNTS}
            cells.append({"stage": stage, "magnitude": magnitude, **count})
    return {
        "machine": f"{platform.processor() or platform.machine()}, {module_isa()}, torch {torch.__version__}",
        "faults_that_matter": {stage: tally.matter[stage] for stage in STAGES},
        "healed": {stage: tally.matter[stage] - tally.lost[stage] for stage in STAGES},
        "lost": lost,
        "healed_share_of_covered": [low, high],
        "cells": cells,
        "checks": sum(each.checks for each in ratios),
        "alarms": sum(each.alarms for each in ratios),
        "ratios": [
            {
                "operands": kind,
                "checks": sum(each.checks for each in ratios if each.kind == kind),
                "largest_residual_over_threshold": max(each.largest for each in ratios if each.kind == kind),
                "median_threshold_over_residual": [
                    min(each.median for each in ratios if each.kind == kind),
                    max(each.median for each in ratios if each.kind == kind),
                ],
            }
            for kind in dict.fromkeys(each.kind for each in ratios)
        ],
    }


def module_isa() -> str:
    """The instructions that the campaign ran with."""
    assert _extension.module is not None
    return str(_extension.module.isa())


def _show(console: Console, document: dict[str, Any]) -> None:
    table = Table(title="Faults that change the bits or not: seen, and right in the end, by stage and magnitude")
    for column in ("stage", "magnitude", "faults", "seen", "bits right", "matter", "raised"):
        table.add_column(column, justify="right")
    for cell in document["cells"]:
        size = "flipped bit" if cell["magnitude"] is None else f"{cell['magnitude']:g}"
        counts = (str(cell[name]) for name in COUNTS)
        table.add_row(cell["stage"], size, *counts)
    console.print(table)
    low, high = document["healed_share_of_covered"]
    console.print(
        f"of faults that matter, in operands, logits and partials: {document['lost']} not healed; healed to the clean "
        f"bits: {100 * low:.4f} % to {100 * high:.4f} % (95 % interval)"
    )
    table = Table(title=f"{document['checks']} checks of clean rows and tiles: {document['alarms']} alarms")
    for column in ("operands", "checks", "largest residual / threshold", "median threshold / residual"):
        table.add_column(column, justify="right")
    for each in document["ratios"]:
        least, most = each["median_threshold_over_residual"]
        largest = f"{each['largest_residual_over_threshold']:.3f}"
        table.add_row(each["operands"], str(each["checks"]), largest, f"{least:.1f} to {most:.1f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
