"""Tests of saved emulations: a plan writes the same lines anywhere, and a file replays to the same events and bits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steadysum.cores.faults import KINDS, Arm
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.emulation.campaign import run_campaign
from steadysum.diagnosis.emulation.file import SCHEMA, CallWriter, SavedCalls
from steadysum.diagnosis.emulation.plan import EmulationPlan, values_of
from steadysum.diagnosis.emulation.replay import Difference, replay_document, replay_file
from steadysum.errors import ScheduleError
from steadysum.settings import Settings
from steadysum.sync.policies import POLICIES
from steadysum.sync.virtual import SCHEDULERS

from .emulations import Interrupter, small


@pytest.fixture(autouse=True)
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded traces of the tests go nowhere near the user's."""
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path / "traces"))


def save(plan: EmulationPlan, path: Path) -> list[str]:
    """Runs and saves a plan; gives back the calls' lines."""
    with CallWriter(path, plan) as writer:
        run_campaign(plan, made=writer.made)
    return path.read_text().splitlines()[1:]


OTHER_PROCESS = """
import json, sys
from pathlib import Path
from steadysum.diagnosis.emulation.campaign import run_campaign
from steadysum.diagnosis.emulation.file import CallWriter, SavedCalls
from steadysum.diagnosis.emulation.replay import replay_file
saved, again = SavedCalls(Path(sys.argv[1])), Path(sys.argv[2])
with CallWriter(again, saved.plan) as writer:
    run_campaign(saved.plan, made=writer.made)
report = replay_file(saved)
print(json.dumps([report.calls, report.difference, report.exit_code]))
"""


def runs_and_replays_alike_elsewhere(plan: EmulationPlan, folder: Path) -> None:
    """Saves a plan's calls here; in another process, runs the plan from its seed and replays the file."""
    lines = save(plan, folder / "here")
    assert len(lines) == plan.calls
    assert len({json.loads(line)["events"] for line in lines}) > plan.calls / 2  # calls aren't all alike
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(folder / "here"), str(folder / "elsewhere")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [plan.calls, None, 0]
    assert (folder / "elsewhere").read_text().splitlines()[1:] == lines
    headers = [json.loads((folder / name).read_text().splitlines()[0]) for name in ("here", "elsewhere")]
    assert [header.pop("created") != "" for header in headers] == [True, True]
    assert headers[0] == headers[1]


def test_1000_calls_run_from_their_seed_and_replay_to_the_same_events_and_bits_in_another_process(
    tmp_path: Path,
) -> None:
    plan = small("legacy", shape=Shape(8, 2, 32), cores=2, calls=1000)
    runs_and_replays_alike_elsewhere(plan, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES)
def test_1000_calls_at_the_field_reports_shape_run_and_replay_alike_in_another_process(
    policy: str, tmp_path: Path
) -> None:
    runs_and_replays_alike_elsewhere(EmulationPlan(settings=Settings(allreduce_policy=policy), calls=1000), tmp_path)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_campaign_with_every_kind_of_fault_armed_replays(policy: str, scheduler: str, tmp_path: Path) -> None:
    plan = small(
        policy,
        tuple(str(Arm(kind, probability=0.02)) for kind in KINDS),
        load=30.0 if scheduler == "clock" else 0.0,
        scheduler=scheduler,
        calls=6,
    )
    lines = save(plan, tmp_path / "calls")
    assert save(plan, tmp_path / "again") == lines
    report = replay_file(SavedCalls(tmp_path / "calls"))
    assert (report.calls, report.difference, report.exit_code) == (6, None, 0)


def test_each_call_is_whole_in_the_file_before_the_next_one_begins(tmp_path: Path) -> None:
    path, plan = tmp_path / "calls", small(calls=5)
    seen: list[int] = []
    with CallWriter(path, plan) as writer:

        def made(call: Any, outputs: Any) -> None:
            writer.made(call, outputs)
            seen.append(len(path.read_text().splitlines()))

        run_campaign(plan, made=made)
    assert seen == [2, 3, 4, 5, 6]  # the header is one


def test_a_file_that_was_cut_off_replays_what_it_has_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    save(small(calls=5), path)
    text = path.read_text()
    path.write_text(text[:-10])
    report = replay_file(SavedCalls(path))
    assert (report.calls, report.is_cut, report.difference, report.exit_code) == (4, True, None, 2)
    path.write_text(text.splitlines()[0])  # within the header
    with pytest.raises(ScheduleError, match="line 1: got a line that was cut off"):
        SavedCalls(path)


def test_a_replay_that_is_stopped_says_nothing_of_the_calls_after(tmp_path: Path) -> None:
    path, watcher = tmp_path / "calls", Interrupter(after=2)
    save(small(calls=5), path)
    report = replay_file(SavedCalls(path), watcher.stopped, watcher.progressed)
    assert (report.calls, report.stopped, report.exit_code) == (2, True, 2)


Lines = list[dict[str, Any]]


def other_bits(calls: Lines) -> None:
    calls[2]["outputs"] = "0" * 32


def other_events(calls: Lines) -> None:
    calls[2]["events"] = "0" * 32


def an_error(calls: Lines) -> None:
    calls[2]["error"] = {"type": "SyncTimeout", "cores": [1]}


def another_calls_schedule(calls: Lines) -> None:
    calls[2]["schedules"] = calls[3]["schedules"]


def a_shorter_schedule(calls: Lines) -> None:
    calls[2]["schedules"][0] = " ".join(calls[2]["schedules"][0].split()[:30])


def an_impossible_schedule(calls: Lines) -> None:
    calls[2]["schedules"][0] = "b0 s99"


def a_missing_launch(calls: Lines) -> None:
    calls[2]["schedules"] = []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (other_bits, "outputs"),
        (other_events, "events"),
        (an_error, "error"),
        (another_calls_schedule, "events"),
        (a_shorter_schedule, "schedule"),  # its units don't end, so that the policy launches again
        (an_impossible_schedule, "schedule"),
        (a_missing_launch, "schedule"),
    ],
)
def test_the_first_difference_is_found_in_its_call(change: Callable[[Lines], None], what: str, tmp_path: Path) -> None:
    path = tmp_path / "calls"
    lines = [json.loads(line) for line in save(small("enhanced", calls=5), path)]
    change(lines)
    header = path.read_text().splitlines()[0]
    path.write_text("\n".join([header, *map(json.dumps, lines)]) + "\n")
    report = replay_file(SavedCalls(path))
    assert isinstance(report.difference, Difference)
    assert (report.difference.call, report.difference.what) == (3, what)
    assert (report.calls, report.exit_code) == (3, 1)
    found = replay_document(report, path)
    assert found["difference"]["call"] == 3


def header_of(**changes: Any) -> str:
    header = {"schema": SCHEMA, "created": "", "versions": {}, "plan": values_of(small())}
    return json.dumps({**header, **changes}) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: got a line that was cut off"),
        ("not a file of ours\n", "line 1: got no JSON"),
        ("[1, 2]\n", "line 1: got a JSON list"),
        ('{"schema": "steadysum.trace/1"}\n', "Name a file that `steadysum emulate --save` wrote."),
        (header_of(schema="steadysum.emulation-calls/9"), "Use the version of steadysum that wrote it."),
        (header_of(plan=None), "line 1: got no versions or no plan"),
        (header_of(plan={}), "line 1: got a plan that can't be used"),
        (header_of(plan={**values_of(small()), "faults": ["stall"]}), "kind of a fault: got 'stall'"),
        (header_of(plan={**values_of(small()), "cores": "many"}), "a plan that can't be used"),
        (header_of() + "half\n", "line 2: got no JSON"),
        (header_of() + "{}\n", "line 2: got a line without what a call has ('error')"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused_with_the_line_and_why(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "calls").write_text(text)
    with pytest.raises(ScheduleError) as refused:
        replay_file(SavedCalls(tmp_path / "calls"))
    assert said in str(refused.value)


def test_a_line_that_is_out_of_order_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    lines = save(small(calls=3), path)
    header = path.read_text().splitlines()[0]
    path.write_text("\n".join([header, lines[0], lines[2]]) + "\n")
    with pytest.raises(ScheduleError, match="line 3: got call 3; allowed: call 2"):
        replay_file(SavedCalls(path))


def test_a_file_with_fewer_calls_than_its_plan_is_no_success(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    save(small(calls=3), path)
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines()[:3]))
    report = replay_file(SavedCalls(path))
    assert (report.calls, report.difference, report.is_cut, report.exit_code) == (2, None, False, 2)


def test_a_file_with_more_calls_than_its_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    save(small(calls=3), path)
    header, *rest = path.read_text().splitlines()
    values = json.loads(header)
    values["plan"]["calls"] = 2
    path.write_text("\n".join([json.dumps(values), *rest]) + "\n")
    with pytest.raises(ScheduleError, match="calls, line 4: got call 3; allowed: the 2 calls of the plan"):
        replay_file(SavedCalls(path))


def test_a_bad_token_of_a_schedule_is_refused_with_its_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    lines = [json.loads(line) for line in save(small(calls=3), path)]
    lines[1]["schedules"][0] = "b0 s1 q7"
    header = path.read_text().splitlines()[0]
    path.write_text("\n".join([header, *map(json.dumps, lines)]) + "\n")
    with pytest.raises(ScheduleError, match=r"calls, line 3: got a schedule, token 2, 'q7'; allowed: s3, d2\.0, t5"):
        replay_file(SavedCalls(path))


def test_versions_that_bits_depend_on_and_are_others_are_named(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    save(small(calls=2), path)
    header, *rest = path.read_text().splitlines()
    values = json.loads(header)
    assert set(values["versions"]) == {"steadysum", "torch", "numpy", "machine"}
    values["versions"]["torch"] = "1.0"
    path.write_text("\n".join([json.dumps(values), *rest]) + "\n")
    report = replay_file(SavedCalls(path))
    assert list(report.other_versions) == ["torch"]
    assert report.exit_code == 0  # the bits are the same nonetheless
