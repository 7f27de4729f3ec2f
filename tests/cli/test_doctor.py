"""Tests of `steadysum doctor` as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import steadysum as package
from steadysum import kernels
from steadysum.cli.terminal import stdout
from steadysum.diagnosis.doctor import examine

Run = Callable[..., Any]

RULE = """\
[[rule]]
component = "torch"
range = "*"
level = "error"
symptom = "Our cluster's torch is slow."
remedy = "Ask Ann."
source = "our wiki"
"""


def _words(text: str) -> str:
    return " ".join(text.split())


def test_the_doctor_prints_every_section(steadysum: Run) -> None:
    result = steadysum("doctor")
    assert result.code == 0
    sections = ("versions", "processor", "torch", "devices", "kernels", "determinism", "libraries")
    for section in (*sections, "environment variables", "known of these versions", "next steps"):
        assert f"\n{section}" in f"\n{result.out}"
    assert all(name in result.out for name in kernels.names())
    assert package.__version__ in result.out
    assert "rules judged" in result.out


def test_the_doctor_writes_json(steadysum: Run, tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    assert steadysum("doctor", "--json", str(path)).code == 0
    document = json.loads(path.read_text())
    assert document["sections"]["kernels"][0]["name"] == "native"
    assert document["environment"]["schema"] == "steadysum.environment/1"
    assert document["next_steps"]


def test_the_doctor_explains_kernels_for_hardware_that_is_not_here(steadysum: Run) -> None:
    if kernels.ascend.missing() is None:
        pytest.skip("there is an NPU with torch_npu")
    text = _words(steadysum("doctor").out)
    assert f"ascend not available {kernels.ascend.missing()}. It needs the package torch-npu" in text
    assert "TRITON_INTERPRET" in text
    assert "torch-npu" in text


@pytest.mark.parametrize("width", [72, 80, 200])
def test_nothing_is_cut_off_however_wide_the_terminal_is(
    steadysum: Run, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(stdout, "width", width)
    words = set(steadysum("doctor").out.split())
    found = examine()
    texts = [fact.note for facts in found.sections.values() for fact in facts]
    texts += [match.rule.symptom for match in found.judgement.matches]
    shown = {word for text in texts for word in text.split() if len(word) < 12}  # longer ones may be folded
    assert shown - words == set()


def test_an_environment_that_is_as_it_was_locked_passes(steadysum: Run, tmp_path: Path) -> None:
    lock = str(tmp_path / "lock.json")
    saved = steadysum("doctor", "--save", lock)
    assert saved.code == 0
    assert f"Locked in {lock};" in saved.out.replace("\n", "")
    assert "Lock this environment" not in saved.out
    result = steadysum("doctor", "--against", lock)
    assert result.code == 0
    assert "as locked" in result.out


def test_drift_ends_with_1_and_a_table_of_what_was_locked_and_what_is_here(steadysum: Run, tmp_path: Path) -> None:
    lock, report = tmp_path / "lock.json", tmp_path / "report.json"
    steadysum("doctor", "--save", str(lock))
    document = json.loads(lock.read_text())
    document["environment"]["components"]["torch"]["version"] = "1.0.1"
    document["environment"]["components"]["numpy"]["version"] = "1.0.2"
    document["host"] = "far-away-host"
    lock.write_text(json.dumps(document))
    result = steadysum("doctor", "--against", str(lock), "--json", str(report))
    assert result.code == 1
    text = _words(result.out)
    assert f"error torch 1.0.1 {torch.__version__}" in text
    assert "note numpy 1.0.2" in text
    assert "far-away-host" not in text
    assert "1. Put back what was locked (torch 1.0.1); or" in text
    written = json.loads(report.read_text())
    assert written["exit_code"] == 1
    assert [each["name"] for each in written["lock"]["differences"]] == ["torch", "numpy"]


def test_a_difference_that_is_no_error_passes(steadysum: Run, tmp_path: Path) -> None:
    lock = tmp_path / "lock.json"
    steadysum("doctor", "--save", str(lock))
    document = json.loads(lock.read_text())
    document["environment"]["machine"]["processor"] = "another"
    lock.write_text(json.dumps(document))
    result = steadysum("doctor", "--against", str(lock))
    assert result.code == 0
    assert "note processor another" in _words(result.out)


def test_ones_own_rules_are_judged_and_an_error_ends_with_1(steadysum: Run, tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(RULE)
    result = steadysum("doctor", "--rules", str(rules))
    assert result.code == 1
    text = _words(result.out)
    assert f"error torch {torch.__version__}: Our cluster's torch is slow. Ask Ann. Source: our wiki" in text
    assert f"1. torch {torch.__version__}: Ask Ann." in text


def test_rules_are_also_taken_from_the_environment(
    steadysum: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(RULE.replace('"error"', '"note"'))
    monkeypatch.setenv("STEADYSUM_RULES", str(tmp_path / "mine.toml"))
    result = steadysum("doctor")
    assert result.code == 0
    assert "Our cluster's torch is slow." in result.out


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--rules", RULE.replace('"*"', '"2.7"'), "version rule in {file}, line 1: got range '2.7'"),
        ("--rules", None, "version rules {file}: got No such file or directory"),
        ("--against", "{}", "lock {file}: got the schema None"),
        ("--against", None, "lock {file}: got No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_printed(
    steadysum: Run, tmp_path: Path, option: str, text: str | None, message: str
) -> None:
    file = tmp_path / "file"
    if text is not None:
        file.write_text(text)
    result = steadysum("doctor", option, str(file))
    assert (result.code, result.out) == (2, "")
    assert message.format(file=file) in result.err
    assert "Allowed: " in result.err


def test_a_lock_that_cannot_be_written_ends_with_2(steadysum: Run, tmp_path: Path) -> None:
    result = steadysum("doctor", "--save", str(tmp_path / "no/lock.json"))
    assert result.code == 2
    assert f"{tmp_path}/no/lock.json: No such file or directory" in result.err
