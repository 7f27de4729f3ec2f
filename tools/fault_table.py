"""The table kind x policy of docs/policies.md, by trial.

    python tools/fault_table.py [--write]

Prints the table; with --write puts it into the document. Exit code 1 if the document doesn't hold what was found.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.progress import track

from steadysum.cores.outcomes import SCENARIOS, Outcome, Scenario, try_scenario
from steadysum.sync.policies import POLICIES

DOCUMENT = Path(__file__).parent.parent / "docs" / "policies.md"
BEGIN, END = "<!-- table: tools/fault_table.py -->", "<!-- end of table -->"
TRIALS = range(3)


def row(scenario: Scenario) -> str:
    """One line of the table."""
    cells = [word(try_scenario(scenario, policy, TRIALS).outcome, policy) for policy in range(len(POLICIES))]
    arm = scenario.arm.replace("|", "\\|")
    return f"| {scenario.name} | `{arm}` | {' | '.join(cells)} | {scenario.why} |"


def word(outcome: Outcome, policy: int) -> str:
    """An outcome as the table has it: what a policy that proves its results gets wrong, it can't detect."""
    if outcome is Outcome.WRONG:
        return "**undetectable**" if policy else "**wrong**"
    return str(outcome.value)


def main() -> int:
    """Makes the table, and compares."""
    parser = argparse.ArgumentParser(description="The table kind x policy, by trial.")
    parser.add_argument("--write", action="store_true", help="put it into docs/policies.md")
    arguments = parser.parse_args()
    heading = f"| fault | armed as | {' | '.join(POLICIES)} | why |\n|---|---|---|---|---|---|---|"
    rows = [row(scenario) for scenario in track(SCENARIOS, "trying", disable=not sys.stderr.isatty())]
    table = "\n".join([heading, *rows])
    print(table)
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    held, _, after = rest.partition(END)
    if arguments.write:
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
        return 0
    return 0 if held.strip() == table else 1


if __name__ == "__main__":
    sys.exit(main())
