"""The page about faults says what the data says."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

from steadysum.cores.faults import KINDS, Arm

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()


def test_the_page_has_what_the_tool_prints() -> None:
    spec = importlib.util.spec_from_file_location("list_fault_kinds", ROOT / "tools" / "list_fault_kinds.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert PAGE.split("## Kinds\n\n")[1] == tool.markdown()


def test_the_page_names_all_that_an_arm_has() -> None:
    table = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Kinds")[0], re.MULTILINE)
    own = [field.name for field in fields(Arm) if field.compare and field.name not in ("kind", "knobs")]
    assert table == own


def test_every_kind_has_a_sentence_and_a_meaning_for_each_knob() -> None:
    for kind in KINDS.values():
        assert kind.sentence.endswith(".")
        assert all(knob.meaning for knob in kind.knobs.values())
