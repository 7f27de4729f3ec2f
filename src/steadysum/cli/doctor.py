"""`steadysum doctor`: what is installed, what is known of it, whether it is what was locked, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from steadysum.cli import options
from steadysum.cli.terminal import stdout
from steadysum.diagnosis.doctor import LOCK, Examination, doctor_document, examine, next_steps
from steadysum.diagnosis.document import write_json
from steadysum.environment.lock import save_lock

Save = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Lock this environment: write what it is.", show_default=False, dir_okay=False),
]
Against = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Compare with a lock; exit code 1 if what computes has changed.", show_default=False
    ),
]
Rules = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Your own version rules (TOML), beside ours and those of STEADYSUM_RULES. Repeatable.",
        show_default=False,
    ),
]

MOST_NAME = 26  # characters of a name that isn't broken on narrow terminals: ASCEND_RT_VISIBLE_DEVICES

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def doctor(save: Save = None, against: Against = None, rules: Rules = None, json: options.Json = None) -> None:
    """Show versions, devices, kernels and switches, what is known of these versions, and what to do next."""
    found = examine(rules or (), against)
    _print_sections(found)
    _print_rules(found)
    if found.lock is not None:
        _print_lock(found)
    _print_steps([step for step in next_steps(found) if save is None or step != LOCK])
    if save is not None:
        save_lock(found.record, save)
        stdout.print(Text(f"Locked in {save}; compare with it by steadysum doctor --against {save}."))
    if json is not None:
        write_json(doctor_document(found), json)
    raise typer.Exit(found.exit_code)


def _print_sections(found: Examination) -> None:
    for section, facts in found.sections.items():
        table = _table(section)
        width = max(len(fact.name) for fact in facts)
        table.add_column(min_width=min(width, MOST_NAME), overflow="fold")
        table.add_column(overflow="fold", style="bold")
        table.add_column(style="dim")
        for fact in facts:
            table.add_row(*map(Text, fact))
        stdout.print(table)
        stdout.print()


def _print_rules(found: Examination) -> None:
    """What applies; and how much could be judged at all."""
    table = _table("known of these versions")
    table.add_column(no_wrap=True)
    table.add_column()
    for match in found.judgement.matches:
        rule = match.rule
        style = _STYLES[rule.level]
        table.add_row(
            Text(rule.level, style=style),
            Text.assemble(
                (f"{rule.component} {match.version}: ", "bold"), rule.symptom, (f"\n{rule.remedy}", style),
                (f"\nSource: {rule.source}", "dim"),
            ),
        )  # fmt: skip
    for rule, seen in found.judgement.unread:
        table.add_row(Text("warning", style="yellow"), Text(f"{rule.component} {seen}: it doesn't read as a version."))
    missing = ", ".join(found.judgement.missing)
    judged = f"{found.judgement.checked} rules judged, {len(found.judgement.matches)} apply"
    table.add_row("", Text(f"{judged}; not here: {missing}." if missing else f"{judged}.", style="dim"))
    stdout.print(table)
    stdout.print()


def _print_lock(found: Examination) -> None:
    table = _table(f"against {found.lock}")
    if not found.differences:
        table.add_row(Text("as locked", style="green"))
    else:
        table.show_header = True
        for header in ("", "what", "locked", "here", ""):
            table.add_column(header, overflow="fold")
        for difference in found.differences:
            level = "error" if difference.is_error else "note"
            cells = (level, difference.name, difference.locked or "none", difference.here or "none", difference.note)
            table.add_row(*(Text(cell, style=_STYLES[level]) for cell in cells))
    stdout.print(table)
    stdout.print()


def _print_steps(steps: Iterable[str]) -> None:
    table = _table("next steps")
    table.add_column(no_wrap=True)
    table.add_column()
    for number, step in enumerate(steps, 1):
        table.add_row(f"{number}.", Text(step))
    stdout.print(table)


def _table(title: str) -> Table:
    return Table(
        title=Text(title, style="bold"), title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False
    )
