"""Tests of `steadysum profiles` as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steadysum.cli import profiles
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.profiles import strikes
from steadysum.diagnosis.profiles.costs import EmulatedPlace
from steadysum.diagnosis.profiles.faults import TILE
from steadysum.diagnosis.profiles.plan import MeasurePlan


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean calls at small shapes, and one profile."""

    def plan(**options: Any) -> MeasurePlan:
        place = EmulatedPlace("a small shape", Shape(8, 4, 24), 2, TILE, 2)
        shapes = (("a small shape", Shape(4, 16, 600)),)
        return MeasurePlan(**options, profiles=("inference",), emulated_places=(place,), native_shapes=shapes)

    monkeypatch.setattr(profiles, "MeasurePlan", plan)


def test_the_table_has_each_profiles_settings_and_promise(steadysum: Callable[..., Any]) -> None:
    result = steadysum("profiles")
    assert result.code == 0, result.err
    for words in (
        "training sync_wait_timeout=3000",
        "inference allreduce_policy=2",
        "> 99.99 % < 2 %",
        "> 99.5 % < 8 %",
    ):
        assert words in " ".join(result.out.split())


@pytest.mark.usefixtures("short", "needs_native")
def test_a_measurement_is_printed_and_saved(
    steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(strikes.BUILD, str(tmp_path))  # no build with traps there
    path = tmp_path / "profiles.json"
    result = steadysum("profiles", "--measure", "--calls", "8", "--rate", "20", "--save", str(path))
    assert result.code == 0, result.err
    for words in (
        "right calls on the emulated device",
        "cost of clean calls (virtual clock), over policy legacy",
        'cost of clean calls (wall clock), over verify="off"',
        "Faults in the native kernel weren't measured",
        "`make traps`",
    ):
        assert words in " ".join(result.out.split())
    document = json.loads(path.read_text())
    assert document["schema"] == "steadysum.profiles/1"
    assert document["complete"]
    assert document["command"] == f"steadysum profiles --measure --calls 8 --rate 20 --save {path}"
    assert document["plan"]["rates"] == [0.2]
    assert {(each["subject"], each["calls"]) for each in document["campaigns"]} == {("legacy", 8), ("inference", 8)}


@pytest.mark.usefixtures("short", "traps")
def test_faults_in_the_native_kernel_are_measured_with_the_build_with_traps(
    steadysum: Callable[..., Any],
) -> None:
    result = steadysum("profiles", "--measure", "--device", "native", "--calls", "30")
    assert result.code == 0, result.err
    assert "right calls by the native kernel" in result.out
    assert "emulated" not in result.out


@pytest.mark.usefixtures("short")
def test_a_file_that_cannot_be_written_is_known_before_anything_is_measured(
    steadysum: Callable[..., Any], tmp_path: Path
) -> None:
    result = steadysum("profiles", "--measure", "--save", f"{tmp_path}/no/x.json")
    assert result.code == 2
    assert f"error: {tmp_path}/no/x.json: No such file or directory" in result.err


def test_a_rate_that_cannot_be_is_refused(steadysum: Callable[..., Any]) -> None:
    result = steadysum("profiles", "--measure", "--rate", "0")
    assert result.code == 2
    assert "error: --rate: got 0" in result.err
