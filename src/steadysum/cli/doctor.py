"""`steadysum doctor`: what is installed, what this CPU can do, and which kernels run here."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from steadysum.cli import options
from steadysum.cli.terminal import stdout
from steadysum.diagnosis.document import write_json
from steadysum.diagnosis.environment import doctor_document, examine


def doctor(json: options.Json = None) -> None:
    """Show versions, CPU features, threads, kernels and why each is or isn't available, and variables that matter."""
    sections = examine()
    for section, facts in sections.items():
        table = Table(
            title=Text(section, style="bold"), title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False
        )
        width = max(len(fact.name) for fact in facts)
        table.add_column(min_width=width, no_wrap=True)
        table.add_column(overflow="fold", style="bold")
        table.add_column(style="dim")
        for fact in facts:
            table.add_row(*map(Text, fact))
        stdout.print(table)
        stdout.print()
    if json is not None:
        write_json(doctor_document(sections), json)
