"""Tests of `steadysum emulate` and `steadysum check --device emulated` as a user sees them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steadysum.diagnosis.emulation import campaign, replay

SMALL = ("--shape", "16,4,32", "--tile", "8,16", "--cores", "4", "--calls", "40", "--load", "30")


@pytest.fixture(autouse=True)
def no_settings_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces and settings of the tests are their own."""
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path / "traces"))
    for name in list(os.environ):
        if name.startswith("STEADYSUM_") and name != "STEADYSUM_TRACES":
            monkeypatch.delenv(name)


def test_the_default_is_legacy_under_load_and_deviates(steadysum: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = steadysum("emulate", *SMALL, "--json", str(path))
    assert result.code == 1
    text = " ".join(result.out.split())
    found = re.search(r"legacy, 4 cores, load 30: (\d+) of 40 calls deviate, \S+ % \[\S+, \S+\]", text)
    assert found is not None
    assert "every deviating call has one that it went wrong at" in text
    assert "The field report's own loop on such a device, 40 calls with equal inputs" in text
    assert "--policy enhanced" in text
    assert result.err == ""
    document = json.loads(path.read_text())
    assert (document["schema"], document["complete"]) == ("steadysum.emulation/1", True)
    assert document["deviating"]["calls"] == document["hazards"]["with_manifest"] == int(found[1])
    assert document["exit_code"] == 1


@pytest.mark.parametrize("policy", ["enhanced", "1", "verified", "3"])
def test_the_other_policies_do_not_deviate_under_the_same_load(policy: str, steadysum: Callable[..., Any]) -> None:
    result = steadysum("emulate", *SMALL, "--policy", policy)
    assert result.code == 0, result.out
    assert "0 of 40 calls deviate, 0 % [0, 8.8]" in result.out  # 1 - 0.025^(1/40) is 8.8 %
    assert "to see 1 in 1000: --calls 2995" in " ".join(result.out.split())


def test_hazards_are_printed_in_full_on_demand(steadysum: Callable[..., Any]) -> None:
    result = steadysum("emulate", *SMALL, "--hazards")
    assert "the newest that deviates:" in result.out
    assert "steadysum: read-after-write hazard in region" in result.out
    assert "hazard in region" not in steadysum("emulate", *SMALL).out


def test_a_fault_is_armed_and_counted(steadysum: Callable[..., Any]) -> None:
    result = steadysum("emulate", *SMALL, "--load", "0", "--policy", "enhanced", "--fault", "dead:core=2,calls=3")
    assert result.code == 1
    text = " ".join(result.out.split())
    assert "1 fault armed: 0 of 40 calls deviate" in text
    assert "1 raised" in text
    assert "1 call raised SyncTimeout, naming core 2" in text


def test_a_fault_that_never_acts_is_no_success(steadysum: Callable[..., Any]) -> None:
    result = steadysum("emulate", *SMALL, "--load", "0", "--policy", "1", "--fault", "dead:calls=77")
    assert result.code == 2
    assert "void: dead:calls=77 never acted" in " ".join(result.out.split())


def test_settings_come_from_a_file_or_a_profile_and_options_come_first(
    steadysum: Callable[..., Any], tmp_path: Path
) -> None:
    file, path = tmp_path / "settings.ini", tmp_path / "report.json"
    file.write_text("[GE]\nsync_wait_timeout = 1500\nallreduce_policy = 1\n")
    few = ("emulate", *SMALL, "--calls", "1", "--load", "0", "--json", str(path))

    def settings() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(path.read_text())["plan"]["settings"]
        return found

    assert steadysum(*few).code == 0
    assert (settings()["allreduce_policy"], settings()["sync_wait_timeout"]) == (0, 2000)
    assert steadysum(*few, "--settings", str(file)).code == 0
    assert (settings()["allreduce_policy"], settings()["sync_wait_timeout"]) == (1, 1500)
    assert (
        steadysum(*few, "--settings", str(file), "--policy", "duplicated", "--timeout", "7", "--retries", "5").code == 0
    )
    assert (settings()["allreduce_policy"], settings()["sync_wait_timeout"], settings()["max_retries"]) == (3, 7, 5)
    assert steadysum(*few, "--profile", "inference", "--no-async").code == 0
    assert (settings()["allreduce_policy"], settings()["enable_async"]) == (2, False)
    assert steadysum(*few, "--config", str(file), "--profile", "training").code == 0
    assert (settings()["allreduce_policy"], settings()["sync_wait_timeout"]) == (1, 1500)


def test_a_mistake_in_the_file_of_settings_is_named_by_its_line(steadysum: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "settings.ini"
    file.write_text("[GE]\nsync_wait_timeout = soon\n")
    result = steadysum("emulate", *SMALL, "--config", str(file))
    assert result.code == 2
    assert "settings.ini, line 2: got 'soon'" in result.err


def test_a_policy_in_the_environment_comes_before_the_commands_default(
    steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADYSUM_ALLREDUCE_POLICY", "2")
    few = ("emulate", *SMALL, "--calls", "1", "--load", "0")
    assert "verified, 4 cores" in steadysum(*few).out
    assert "legacy, 4 cores" in steadysum(*few, "--policy", "legacy").out


def interrupt_at(number: int, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is pressed in this call."""
    made = module.make_call
    calls = 0

    def make_call(device: Any, operands: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGINT)
        return made(device, operands)

    monkeypatch.setattr(module, "make_call", make_call)


def test_ctrl_c_reports_the_calls_made_and_could_not_finish(
    steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, calls = tmp_path / "report.json", tmp_path / "calls"
    interrupt_at(6, campaign, monkeypatch)
    result = steadysum("emulate", *SMALL, "--policy", "1", "--json", str(path), "--save", str(calls))
    assert result.code == 2
    assert "enhanced, 4 cores, load 30: stopped early; 0 of 6 calls deviate" in result.out
    document = json.loads(path.read_text())
    assert (document["complete"], document["calls"], document["field_loop"]) == (False, 6, None)
    result = steadysum("emulate", "--replay", str(calls))
    assert result.code == 2  # the plan has more
    assert result.out.splitlines() == ["replayed 6 calls: identical", "The file has 6 of 40 planned calls."]


def test_ctrl_c_ends_a_replay_between_two_calls(
    steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = str(tmp_path / "calls")
    steadysum("emulate", *SMALL, "--save", calls)
    interrupt_at(3, replay, monkeypatch)
    result = steadysum("emulate", "--replay", calls)
    assert result.code == 2
    assert result.out.splitlines() == [
        "replayed 3 calls: identical",
        "Stopped early: the file has more calls.",
    ]


def test_saved_calls_replay_and_a_difference_ends_with_1(steadysum: Callable[..., Any], tmp_path: Path) -> None:
    calls, path = tmp_path / "calls", tmp_path / "replay.json"
    assert steadysum("emulate", *SMALL, "--save", str(calls)).code == 1
    result = steadysum("emulate", "--replay", str(calls), "--json", str(path))
    assert (result.code, result.out) == (0, "replayed 40 calls: identical\n")
    assert json.loads(path.read_text())["schema"] == "steadysum.emulation-replay/1"
    lines = calls.read_text().splitlines()
    changed = json.loads(lines[5])
    changed["outputs"] = "0" * 32
    calls.write_text("\n".join([*lines[:5], json.dumps(changed), *lines[6:]]) + "\n")
    result = steadysum("emulate", "--replay", str(calls), "--json", str(path))
    assert result.code == 1
    assert "replayed 5 calls: call 5 differs in its outputs" in result.out
    assert json.loads(path.read_text())["difference"]["saved"] == "0" * 32


def test_the_same_command_in_another_process_writes_the_same_calls(
    steadysum: Callable[..., Any], tmp_path: Path
) -> None:
    steadysum("emulate", *SMALL, "--save", str(tmp_path / "here"))
    command = [sys.executable, "-m", "steadysum", "emulate", *SMALL, "--save", str(tmp_path / "there")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    here, there = ((tmp_path / name).read_text().splitlines() for name in ("here", "there"))
    assert here[1:] == there[1:]


MISTAKES = [
    (("--fault", "stall"), "kind of a fault: got 'stall'", "Did you mean stale?"),
    (("--fault", "dead:core=77"), "core of fault dead:core=77: got 77", "Allowed: 0 to 23. Leave it out"),
    (("--fault", "dead:phase=P9"), "phase of fault dead:phase=P9: got 'P9'", "P0 init, P0, init"),
    (("--fault", "dead:role=cub"), "role of fault dead:role=cub: got 'cub'", "Did you mean cube?"),
    (("--fault", "stale:site=maks"), "got 'maks'", "Allowed: product, product_stamp, max, sum"),
    (("--fault", "reset:site=exit"), "got 'exit'", "Allowed: init, target, tiles, tile ready, buffer free"),
    (("--policy", "9"), "allreduce_policy: got 9", "0 to 3, or legacy, enhanced, verified, duplicated"),
    (("--policy", "best"), "allreduce_policy: got 'best'", "0 to 3, or legacy, enhanced, verified, duplicated"),
    (("--load", "-1"), "load level: got -1", "Allowed: a number from 0"),
    (("--load", "nan"), "load level: got nan", "Allowed: a number from 0"),
    (("--load", "1", "--scheduler", "pct"), "--load beside --scheduler", "Leave --load out"),
    (("--scheduler", "best"), "--scheduler: got 'best'", "clock, random, pct"),
    (("--shape", "1,2"), "--shape: got '1,2'", "three integers > 0"),
    (("--tile", "8"), "--tile: got '8'", "two integers > 0"),
    (("--dtype", "fp64"), "--dtype: got 'fp64'", "fp32, bf16, fp16"),
    (("--logits-dtype", "fp32"), "--logits-dtype: got fp32", "bf16, fp16"),
    (("--timeout", "0"), "sync_wait_timeout: got 0", "a finite number > 0"),
    (("--retries", "-1"), "max_retries: got -1", "from 0 to 100"),
    (("--profile", "fast"), "profile: got 'fast'", "training, inference, batch"),
    (("--settings", "{folder}/gone.ini"), "gone.ini: got No such file", "[GE]"),
    (("--config", "{folder}/gone.ini", "--profile", "batch"), "gone.ini: got No such file", "[GE]"),
    (("--save", "{folder}/no/calls"), "{folder}/no/calls: No such file", "Check the path"),
    (("--json", "{folder}/no/report.json"), "{folder}/no/report.json: No such file", "Check the path"),
    (("--replay", "{folder}/gone"), "{folder}/gone: No such file", "Check the path"),
    (("--replay", "{folder}/gone", "--calls", "7"), "options beside --replay: got --calls", "leave the others out"),
    (("--replay", "{folder}/gone", "--no-async"), "options beside --replay: got --no-async", "leave the others out"),
    (("--shape", "1000000000,1000,1000000000"), "sets of operands of 1000000000,1000,1000000000", "smaller shape"),
    (("--cores", "0"), "Invalid value for '--cores'", "steadysum emulate -h"),
    (("--calls", "0"), "Invalid value for '--calls'", "steadysum emulate -h"),
]


@pytest.mark.parametrize(("options", "message", "hint"), MISTAKES, ids=[" ".join(each[0])[:50] for each in MISTAKES])
def test_a_mistake_ends_in_a_message_and_a_hint_before_any_work(
    options: tuple[str, ...], message: str, hint: str, steadysum: Callable[..., Any], tmp_path: Path
) -> None:
    result = steadysum("emulate", *(option.format(folder=tmp_path) for option in options))
    assert result.code == 2
    assert result.out == ""
    assert message.format(folder=tmp_path) in result.err
    assert hint in " ".join(result.err.split())
    assert list(tmp_path.iterdir()) == []


# ---- steadysum check --device emulated -------------------------------------------------------------------------------

QUICK = ("check", "--device", "emulated", "--shape", "64,8,1024", "--threads", "1,2")


def test_the_emulated_device_deviates_in_a_check(steadysum: Callable[..., Any]) -> None:
    result = steadysum(*QUICK, "--load", "30")
    assert result.code == 1
    assert "emulated, legacy" in result.out
    assert "Deviates: emulated, legacy (repeat" in result.out


def test_the_emulated_device_with_the_cure_does_not(steadysum: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = steadysum(*QUICK, "--load", "30", "--policy", "enhanced", "--json", str(path))
    assert result.code == 0, result.out
    (problem,) = json.loads(path.read_text())["problems"]
    assert {finding["kernel"] for finding in problem["findings"]} == {"emulated, enhanced"}
    promised = {finding["probe"]: finding["promised"] for finding in problem["findings"] if finding["promise"]}
    assert promised == {"repeat": True, "threads": True, "rows alone": False, "shuffled": False, "split": False}


@pytest.mark.parametrize("quiet", [("--load", "0"), ("--cores", "1", "--load", "30")])
def test_a_quiet_device_and_a_single_core_do_not_deviate_under_legacy(
    quiet: tuple[str, ...], steadysum: Callable[..., Any]
) -> None:
    result = steadysum(*QUICK, "--runs", "20", *quiet)
    assert result.code == 0, result.out


def test_faults_are_armed_on_the_device_of_a_check(steadysum: Callable[..., Any]) -> None:
    result = steadysum(*QUICK, "--runs", "20", "--load", "0", "--fault", "scale:site=out_max,probability=0.2")
    assert result.code == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "enhanced"), "--policy: got no --device"),
        (("--load", "0"), "--load: got no --device"),
        (("--cores", "3", "--fault", "stale"), "--cores, --fault: got no --device"),
        (("--device", "npu"), "--device: got 'npu'; allowed: emulated"),
        (("--device", "emulated", "--kernel", "eager"), "--kernel beside --device: got eager"),
    ],
)
def test_options_of_the_device_are_refused_without_it(
    options: tuple[str, ...], message: str, steadysum: Callable[..., Any]
) -> None:
    result = steadysum("check", *options)
    assert result.code == 2
    assert message.partition("; allowed")[0] in result.err
    assert result.out == ""
