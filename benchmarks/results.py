"""A measured ratio or size with its bar and verdict; tables for people, JSON for machines.

Not here: any measurement.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from steadysum.diagnosis.document import created, write_json
from steadysum.diagnosis.environment import versions
from steadysum.environment.machine import processor_model
from steadysum.timing import Ratio

FOLDER = Path(__file__).parent / "results"
NO_DEVICE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Measure:
    """One line of a table."""

    work: str
    contender: str
    against: str  # what it is compared with; for a size, what is left out of it
    value: Ratio | float | None  # a ratio of times, a number in `unit`, or None if not measured
    bar: float | None = None  # the most that is allowed; None: information
    note: str = ""
    seconds: dict[str, float] = field(default_factory=dict)  # medians
    rounds: int = 0
    unit: str = "MiB"  # of a number; empty: a relative error

    @property
    def verdict(self) -> str:
        """pass, FAIL, or nothing: the whole 95 % interval must lie below the bar."""
        if self.bar is None or self.value is None:
            return "" if self.bar is None else "not measured"
        highest = self.value.high if isinstance(self.value, Ratio) else self.value
        return "pass" if highest <= self.bar else "FAIL"


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    return {**versions(), "processor": processor_model(), "load": os.getloadavg()[0], "created": created()}


def show(console: Console, title: str, measures: Sequence[Measure]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for heading in ("work", "contender", "against"):
        table.add_column(heading, overflow="fold")
    for heading in ("value", "95 %", "bar"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    table.add_column("note", overflow="fold")
    for measure in measures:
        style = {"FAIL": "bold red", "pass": "green"}.get(measure.verdict)
        table.add_row(
            measure.work,
            measure.contender,
            measure.against,
            *_cells(measure),
            "" if measure.bar is None else f"{measure.bar:.4g}",
            f"[{style}]{measure.verdict}[/]" if style else measure.verdict,
            escape(measure.note),
        )
    console.print(table)


def save(name: str, measures: Sequence[Measure], folder: Path = FOLDER, device: Mapping[str, Any] = NO_DEVICE) -> Path:
    """Write NAME.json; what was there is replaced whole or not at all. `device`: more of the environment."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    document = {"environment": {**environment(), **device}, "measures": [_plain(measure) for measure in measures]}
    write_json(document, path)
    return path


def _cells(measure: Measure) -> tuple[str, str]:
    value = measure.value
    if value is None:
        return "-", ""
    if isinstance(value, Ratio):
        return f"{value.median:.3f}", f"{value.low:.3f}..{value.high:.3f}"
    return (f"{value:.1f} {measure.unit}" if measure.unit else f"{value:.2e}"), ""


def _plain(measure: Measure) -> dict[str, Any]:
    value = measure.value._asdict() if isinstance(measure.value, Ratio) else measure.value
    return {**asdict(measure), "value": value, "verdict": measure.verdict}
