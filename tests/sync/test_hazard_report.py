"""What people and machines read of hazards: each line of the text, each key of the JSON, the timeline's arrows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from steadysum.sync.hazard_report import SCHEMA, hazards_document, hazards_text, marks, text_of
from steadysum.sync.hazards import RAW, WAR, WAW, Hazard, Hazards, Side
from steadysum.trace.events import Unit
from steadysum.trace.highlights import Highlight

from .hazard_programs import ONE, ZERO, at, in_order, read, signal, wait, write

LATE = Side(Unit(5, "v0"), "P2 tiles", "write", (7, 2, 1), 3.0, 2_000_123.0, 40, 90)
READ = Side(Unit(3, "v0"), "P3 combine", "read", (7, 3, 0), 12.3, None, 80, None)
AGAIN = Side(Unit(5, "v0"), "P0 init", "write", (8, 0, 0), 9.0, 9.25, 85, 70)
ADDED = Side(Unit(1, "v1"), "P2 tiles", "add", (7, 2, 1), 30.0, 30.0, 60, 60)


def hazard(kind: str, first: Side, second: Side, manifest: bool = True, **others: bool | int) -> Hazard:
    fields: dict[str, bool | int] = {"meant": True, "crosstalk": False, **others}
    return Hazard(kind, "max", 128, 192, 7, first, second, manifest=manifest, **fields)  # type: ignore[arg-type]


def test_a_read_after_write_hazard_says_how_late_the_write_was() -> None:
    assert text_of(hazard(RAW, LATE, READ)).splitlines() == [
        "steadysum: read-after-write hazard in region max [128,192), call 7: manifest",
        "  read by core 3 v0 in P3 combine at 12.3 us",
        "  meant write by core 5 v0 in P2 tiles at 3.0 us, in memory at 2000123.0 us (2000.1 ms after the read)",
        "  no fence and signal of core 5 v0, awaited by core 3 v0, orders them",
    ]


def test_a_write_after_read_hazard_says_how_early_the_write_was() -> None:
    assert text_of(hazard(WAR, READ, AGAIN)).splitlines() == [
        "steadysum: write-after-read hazard in region max [128,192), call 7: manifest",
        "  read by core 3 v0 in P3 combine at 12.3 us",
        "  meant later: write by core 5 v0 in P0 init at 9.0 us, in memory at 9.2 us (3.05 us before the read)",
        "  no signal of core 3 v0, awaited by core 5 v0, orders them",
    ]


def test_a_write_after_write_hazard_names_both_and_how_many_are_like_it() -> None:
    assert text_of(hazard(WAW, LATE, ADDED, manifest=False, count=4)).splitlines() == [
        "steadysum: write-after-write hazard in region max [128,192), call 7: possible",
        "  meant first: write by core 5 v0 in P2 tiles at 3.0 us, in memory at 2000123.0 us",
        "  meant later: add by core 1 v1 in P2 tiles at 30.0 us",
        "  no fence and signal of core 5 v0, awaited by core 1 v1, orders them",
        "  4 pairs like it",
    ]


def test_a_text_says_what_is_not_so_usual() -> None:
    beside = text_of(hazard(WAW, LATE, AGAIN, crosstalk=True, meant=False)).splitlines()
    assert beside[0] == (
        "steadysum: write-after-write hazard in one 64-byte line of region max [128,192), call 7: manifest"
    )
    assert beside[1].startswith("  write by core 5 v0")
    lost = replace(LATE, in_memory=None, memory_event=None)
    assert text_of(hazard(RAW, lost, READ)).splitlines()[2] == (
        "  meant write by core 5 v0 in P2 tiles at 3.0 us, never in memory"
    )
    own = text_of(hazard(WAW, LATE, AGAIN)).splitlines()[3]
    assert own == "  no fence orders them: an atomic add doesn't see the unit's own store buffer"


def message() -> Hazards:
    """A message that isn't fenced, read before it is in memory."""
    A, B = at(0, "out"), at(1, "take")
    sending = {ZERO: [write(A), signal(A, "sent", ZERO)], ONE: [wait(B, "sent", ZERO), read(B, 4, 12)]}
    return in_order(sending, "s0 s0 s1 s1 d0.0")


def test_times_without_a_clock_are_numbers_of_choices() -> None:
    assert hazards_text(message(), clock=False).splitlines() == [
        "steadysum: read-after-write hazard in region slots [4,12), call 1: manifest",
        "  read by core 1 in take at choice 3",
        "  meant write by core 0 in out at choice 0, in memory at choice 4 (1 choice after the read)",
        "  no fence and signal of core 0, awaited by core 1, orders them",
        "",
        "steadysum: 1 hazard, 1 manifest; 1 unordered pair",
    ]


def test_all_reports_end_with_their_number() -> None:
    both = Hazards((hazard(RAW, LATE, READ), hazard(WAR, READ, AGAIN, manifest=False)), 3, 12)
    text = hazards_text(both)
    assert text.split("\n\n")[2] == "steadysum: 5 hazards, 1 manifest, 3 of them not shown; 12 unordered pairs"
    assert hazards_text(Hazards((), 0, 0)) == "steadysum: no hazard found"


def test_the_document_is_json_and_holds_all_of_a_report() -> None:
    document = json.loads(json.dumps(hazards_document(message())))
    assert document == {
        "schema": SCHEMA,
        "pairs": 1,
        "left_out": 0,
        "hazards": [
            {
                "kind": "read-after-write",
                "region": "slots",
                "start": 4,
                "stop": 12,
                "epoch": 1,
                "first": {
                    "core": 0,
                    "role": "core",
                    "phase": "out",
                    "action": "write",
                    "place": [1, 0, 0],
                    "at": 0.0,
                    "in_memory": 4.0,
                    "event": 0,
                    "memory_event": 4,
                },
                "second": {
                    "core": 1,
                    "role": "core",
                    "phase": "take",
                    "action": "read",
                    "place": [1, 0, 1],
                    "at": 3.0,
                    "in_memory": None,
                    "event": 3,
                    "memory_event": None,
                },
                "meant": True,
                "crosstalk": False,
                "manifest": True,
                "count": 1,
            }
        ],
    }


def test_marks_lead_from_the_write_to_what_it_harmed() -> None:
    replaced = replace(LATE, in_memory=4.0, memory_event=50)
    overwritten = replace(LATE, in_memory=9.5, memory_event=75)
    found = Hazards(
        (
            hazard(RAW, LATE, READ),
            hazard(RAW, replaced, READ),
            hazard(WAR, READ, AGAIN),
            hazard(WAW, overwritten, AGAIN),
            hazard(RAW, LATE, READ, manifest=False),
        ),
        0,
        5,
    )
    assert marks(found) == (
        Highlight(80, 90, "core 3 v0 read max [128,192) of core 5 v0 before it was written"),
        Highlight(80, 50, "core 3 v0 read max [128,192) of core 5 v0 after something else had replaced it"),
        Highlight(80, 70, "core 5 v0 overwrote max [128,192) before core 3 v0 had read it"),
        Highlight(70, 75, "core 5 v0 and core 5 v0 undid each other's words in max [128,192)"),
    )


def test_the_report_in_the_guide_is_the_one_that_its_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "hazards.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(program, "docs/hazards.md", "exec"), {})
    assert capsys.readouterr().out == printed
