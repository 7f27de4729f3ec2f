"""The user guide tells the truth: its Python runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+?)(?:#[^)]*)?\)")
MAKE_TARGET = re.compile(r"\bmake ([a-z-]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_a_page_runs_from_top_to_bottom(page: Path) -> None:
    program = "\n".join(PYTHON_BLOCK.findall(page.read_text()))
    exec(compile(program, str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_a_page_lead_to_files(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_named_in_a_page_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    fenced = "\n".join(re.findall(r"`[^`]+`|^    make .*$|^make .*$", page.read_text(), re.MULTILINE))
    assert set(MAKE_TARGET.findall(fenced)) <= targets
