"""Explores the exchange protocol, and prints the table of docs/protocol.md.

    python tools/explore_protocol.py [--slow] [--write]

Without --slow it takes seconds: the lines above the mark in the page. --write puts what it prints into the page.
Exit code 0: the page holds what was found (or was written so); 1: it differs. Not here: what a line must show (tests).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from steadysum.sync.exchange_lines import LINES, SLOW_LINES, explore_lines, markdown

PAGE: Final = Path(__file__).parent.parent / "docs" / "protocol.md"


def between(page: str, name: str) -> tuple[int, int]:
    """Where the part of the page is that the tool prints."""
    begin, end = f"<!-- explored: {name} -->\n", f"<!-- end of {name} -->\n"
    return page.index(begin) + len(begin), page.index(end)


def main(arguments: list[str] | None = None) -> int:
    """Runs the tool; gives back its exit code."""
    parser = argparse.ArgumentParser(description="Explores the exchange protocol.")
    parser.add_argument("--slow", action="store_true", help="the larger configurations instead: minutes")
    parser.add_argument("--write", action="store_true", help="put the result into docs/protocol.md")
    options = parser.parse_args(arguments)
    name, lines = ("slow lines", SLOW_LINES) if options.slow else ("lines", LINES)
    printed = markdown(explore_lines(lines))
    print(printed)
    page = PAGE.read_text()
    begin, end = between(page, name)
    if page[begin:end] == printed:
        return 0
    if options.write:
        PAGE.write_text(page[:begin] + printed + page[end:])
        return 0
    print(f"{PAGE.name} holds something else; --write mends it.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
