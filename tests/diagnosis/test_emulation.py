"""Tests of a campaign on the emulated device: what it counts, what it says of it, and when it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.document import write_json
from steadysum.diagnosis.emulation import document
from steadysum.diagnosis.emulation.campaign import run_campaign
from steadysum.diagnosis.emulation.document import emulation_document
from steadysum.diagnosis.emulation.field import FIELD_CALLS
from steadysum.diagnosis.emulation.judge import THRESHOLD, Outcome, judge_call
from steadysum.diagnosis.emulation.plan import EmulationPlan, operand_sets, plan_of, values_of
from steadysum.diagnosis.emulation.report import render_emulation, render_hazards
from steadysum.diagnosis.rates import clopper_pearson
from steadysum.errors import OptionError, RangeError, SteadySumError
from steadysum.maxsum import MaxSum
from steadysum.trace.json_lines import load_trace, newest_trace

from .emulations import Interrupter, small

TRUE = MaxSum(torch.tensor([1.0, 2.0, -0.0]), torch.tensor([3.0, 4.0, 5.0]))


@pytest.fixture(autouse=True)
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recorded traces of the tests go nowhere near the user's."""
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path / "traces"))
    return tmp_path / "traces"


def text_of(renderable: Any) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


# ---- one call's outcome ----------------------------------------------------------------------------------------------


def changed(row: int, largest: float | None = None, total: float | None = None) -> MaxSum:
    """TRUE with another max or sum in one row."""
    found = MaxSum(TRUE.max.clone(), TRUE.sum_exp.clone())
    if largest is not None:
        found.max[row] = largest
    if total is not None:
        found.sum_exp[row] = total
    return found


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        (changed(0), Outcome.RIGHT),
        (changed(2, largest=0.0), Outcome.DIFFERS),  # -0 has other bits
        (changed(1, largest=2.0 + 0.9 * THRESHOLD), Outcome.DIFFERS),
        (changed(1, largest=2.0 + 1.1 * THRESHOLD), Outcome.DEVIATES),
        (changed(1, total=4.0 * (1 + 0.9 * THRESHOLD)), Outcome.DIFFERS),
        (changed(1, total=4.0 * (1 - 1.1 * THRESHOLD)), Outcome.DEVIATES),
        (changed(0, total=torch.nan), Outcome.DEVIATES),
        (changed(0, largest=-torch.inf), Outcome.DEVIATES),
        (changed(0, total=0.0), Outcome.DEVIATES),
    ],
)
def test_a_call_deviates_where_a_rows_max_or_log_sum_is_off_by_more_than_the_threshold(
    seen: MaxSum, outcome: Outcome
) -> None:
    assert judge_call(TRUE, seen).outcome is outcome


def test_a_row_that_is_nan_by_right_is_right() -> None:
    nan = changed(0, largest=torch.nan)
    assert judge_call(nan, changed(0, largest=torch.nan)).outcome is Outcome.RIGHT
    assert judge_call(nan, TRUE).outcome is Outcome.DEVIATES


# ---- campaigns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        small("legacy", load=0.0),
        small("legacy", cores=1),
        small("enhanced"),
        small("verified", calls=20),
        small("duplicated", calls=20),
        small("enhanced", load=0.0, scheduler="random", calls=20),
        small("enhanced", load=0.0, scheduler="pct", calls=20),
    ],
    ids=lambda plan: plan.title,
)
def test_no_call_deviates_on_a_quiet_device_on_one_core_or_under_the_other_policies(plan: EmulationPlan) -> None:
    report = run_campaign(plan)
    assert report.outcomes == {
        Outcome.RIGHT: plan.calls,
        Outcome.DIFFERS: 0,
        Outcome.DEVIATES: 0,
        Outcome.RAISED: 0,
    }
    assert (report.exit_code, report.complete) == (0, True)


def test_every_call_of_legacy_that_float64_finds_deviating_is_counted_and_has_a_manifest_hazard() -> None:
    plan = small("legacy")
    logits = [each.input.double() @ each.weight.double().T for each in operand_sets(plan)]
    exact = [(z.amax(1), z.logsumexp(1)) for z in logits]
    deviating: list[int] = []

    def made(call: Any, outputs: MaxSum | SteadySumError) -> None:
        assert isinstance(outputs, MaxSum)
        largest, log_sum = exact[(call.number - 1) % plan.inputs]
        off = (outputs.max - largest).abs().maximum((outputs.log_sum_exp - log_sum).abs())
        if not bool((off <= THRESHOLD).all()):
            deviating.append(call.number)

    report = run_campaign(plan, made=made)
    assert 0 < len(deviating) < plan.calls
    assert report.deviating == len(deviating)
    assert report.last_call == deviating[-1]
    assert report.interval == clopper_pearson(len(deviating), plan.calls)
    assert report.hazards.calls == report.hazards.with_manifest == len(deviating)
    assert report.exit_code == 1


def test_the_right_value_of_an_earlier_call_shows_only_where_inputs_change() -> None:
    stale = ("stale:phase=P3,calls=2-",)  # every slot is read as the call before left it
    assert run_campaign(small("legacy", stale, load=0.0, inputs=1, calls=6)).outcomes[Outcome.RIGHT] == 6
    assert run_campaign(small("legacy", stale, load=0.0, inputs=2, calls=6)).deviating == 5


def test_a_refused_call_counts_as_raised_with_the_core_that_it_names() -> None:
    report = run_campaign(small("enhanced", ("dead:core=1,calls=3",), load=0.0, calls=5))
    assert report.outcomes[Outcome.RAISED] == 1
    assert report.outcomes[Outcome.RIGHT] == 4
    ((raised, calls),) = report.raised
    assert (raised.error, raised.cores, calls) == ("SyncTimeout", (1,), 1)
    assert report.exit_code == 1
    assert "1 call raised SyncTimeout, naming core 1" in text_of(render_emulation(report))


def test_what_a_policy_has_healed_is_counted_as_noticed_and_right() -> None:
    report = run_campaign(small("enhanced", ("dropped:site=max,most=1",), load=0.0, calls=5))
    assert report.outcomes[Outcome.RIGHT] == 5
    assert (report.noticed, report.noticed_and_right) == (1, 1)
    assert "the policy saw something wrong in 1 call; of these, 1 ended right" in text_of(render_emulation(report))
    assert report.exit_code == 0


def test_a_fault_that_never_acts_makes_the_verdict_void() -> None:
    report = run_campaign(small("enhanced", ("dropped:calls=99",), load=0.0, calls=5))
    assert report.void == ("dropped:calls=99",)
    assert report.exit_code == 2
    text = text_of(render_emulation(report))
    assert "void: dropped:calls=99 never acted" in text
    assert "A fault that never acts proves nothing" in text


def test_the_verdict_is_a_line_with_the_rate_and_its_interval() -> None:
    report = run_campaign(small("legacy"))
    low, high = (f"{100 * end:.1f}" for end in report.interval)
    rate = f"{100 * report.deviating / 40:.1f}"
    text = text_of(render_emulation(report))
    assert f"legacy, 4 cores, load 30: {report.deviating} of 40 calls deviate, {rate} % [{low}, {high}]" in text
    assert "every deviating call has one that it went wrong at" in text
    assert "barrier tiles" in text


def test_the_field_reports_own_loop_is_run_and_its_verdict_stands_beside() -> None:
    plan = small("legacy", calls=FIELD_CALLS + 20)
    report = run_campaign(plan)
    assert report.loop is not None
    assert report.loop.loop.calls == FIELD_CALLS
    assert (
        f"The field report's own loop on such a device, 100 calls with equal inputs, of which "
        f"{report.loop.loop.deviating} gave other bits: it {report.loop.loop.says}."
        in text_of(render_emulation(report))
    )


def test_hazards_in_full_are_those_of_the_newest_deviating_call() -> None:
    report = run_campaign(small("legacy"))
    text = text_of(render_hazards(report))
    assert text.startswith(f"call {report.last_call}, the newest that deviates:")
    assert "read-after-write hazard in region max" in text
    assert ": manifest" in text
    quiet = run_campaign(small("legacy", load=0.0, calls=2))
    assert "No call deviated" in text_of(render_hazards(quiet))


# ---- ends, and what is left behind -----------------------------------------------------------------------------------


def test_a_campaign_that_is_stopped_reports_the_calls_made_and_could_not_finish() -> None:
    watcher = Interrupter(after=7)
    report = run_campaign(small("enhanced"), watcher)
    assert (report.calls, report.complete, report.exit_code, report.loop) == (7, False, 2, None)
    assert "enhanced, 4 cores, load 30: stopped early; 0 of 7 calls deviate" in text_of(render_emulation(report))
    assert watcher.reports[-1] == report


def test_a_campaign_that_is_stopped_before_its_first_call_has_a_report() -> None:
    report = run_campaign(small("legacy"), Interrupter(after=0))
    assert (report.calls, report.exit_code, report.trace) == (0, 2, None)
    assert "0 of 0 calls deviate" in text_of(render_emulation(report))


def test_the_first_report_comes_before_the_first_call_and_only_the_last_is_complete() -> None:
    watcher = Interrupter()
    run_campaign(small("legacy", calls=3), watcher)
    assert watcher.reports[0].calls == 0
    assert [report.complete for report in watcher.reports] == [False] * (len(watcher.reports) - 1) + [True]


@pytest.mark.parametrize(("load", "deviates"), [(30.0, True), (0.0, False)])
def test_the_newest_deviating_call_is_recorded_or_else_the_last_one(load: float, deviates: bool) -> None:
    report = run_campaign(small("legacy", load=load))
    assert (report.last_call is not None) == deviates
    trace = load_trace(newest_trace())
    assert report.trace == str(newest_trace())
    assert trace.what["call"] == (report.last_call if deviates else 40)
    assert trace.what["load"] == load
    assert {event.epoch for event in trace.events} == {trace.what["call"]}


def test_a_folder_of_traces_that_cannot_be_written_to_ends_no_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path / "file" / "traces"))
    report = run_campaign(small("legacy", load=0.0, calls=2))
    assert report.exit_code == 0
    assert "The trace of the last call was not recorded: " in text_of(render_emulation(report))


def test_the_document_has_the_keys_of_its_schema_and_is_json(tmp_path: Path) -> None:
    report = run_campaign(small("legacy", ("flip:probability=0.01",)))
    write_json(emulation_document(report), tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert document.__doc__ is not None
    documented = [line.split()[0] for line in document.__doc__.splitlines() if line[:4] == "    " and line[4:5].strip()]
    assert list(found) == documented
    assert found["complete"]
    assert found["calls"] == sum(found["outcomes"].values()) == 40
    assert found["deviating"]["calls"] == report.deviating
    assert found["faults"][0]["acted"] <= found["faults"][0]["offered"]
    assert {wait["name"] for wait in found["waits"]} >= {"init", "target", "tiles", "tile ready"}


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_survives_its_values() -> None:
    plan = small(
        "verified",
        ("stale:core=1,probability=0.5", "delay"),
        {"sync_wait_timeout": 12.5, "enable_async": False},
        dtype=torch.bfloat16,
        logits_dtype=torch.float16,
        inputs=3,
        seed=2**32,
    )
    assert plan_of(json.loads(json.dumps(values_of(plan)))) == plan


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"inputs": 0}, RangeError, "--inputs: got 0"),
        ({"calls": 0}, RangeError, "--calls: got 0"),
        ({"load": -1.0}, RangeError, "load level: got -1"),
        ({"scheduler": "best"}, RangeError, "--scheduler: got 'best'; allowed: clock, random, pct"),
        ({"scheduler": "pct"}, OptionError, "--load beside --scheduler: got load 30 and pct"),
        ({"logits_dtype": torch.float32}, RangeError, "--logits-dtype: got fp32; allowed: bf16, fp16"),
        ({"shape": Shape(2**40, 2**20, 1)}, RangeError, "Choose a smaller shape"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_when_it_is_made(
    changes: dict[str, Any], error: type[SteadySumError], text: str
) -> None:
    with pytest.raises(error) as refused:
        small("legacy", **changes)
    assert text in str(refused.value)
