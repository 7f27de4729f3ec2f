"""Tests of steadysum.diagnosis.doctor: what the doctor makes of the facts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch

import steadysum
from steadysum.diagnosis.doctor import LOCK, Examination, doctor_document, examine, next_steps
from steadysum.environment.determinism import read_switches
from steadysum.environment.lock import Difference
from steadysum.environment.rules import judge, packaged_rules
from steadysum.environment.vendor import Found
from steadysum.kernels import native

DRIVER = Difference("npu-driver", "25.5.0", "24.1.rc3", True, "a file")
SWITCH = Difference("HCCL_DETERMINISTIC", "true", None, False, "results may vary")


@pytest.fixture(scope="module")
def found() -> Examination:
    return examine()


def _with(found: Examination, differences: Sequence[Difference] = (), **versions: str | None) -> Examination:
    """An examination of a machine with these components and differences, and nothing else to say."""
    components = {name.replace("_", "-"): Found(version, "") for name, version in versions.items()}
    record = dict(found.record)
    record["components"] = {
        name: components.get(name, Found(None, "not looked for"))._asdict() for name in record["components"]
    }
    return found._replace(
        record=record,
        readings=(),
        judgement=judge(packaged_rules(), components),
        differences=tuple(differences),
        lock="lock.json",
        openmp=None,
    )


def test_the_document_can_be_written(found: Examination) -> None:
    document = json.loads(json.dumps(doctor_document(found)))
    assert document["schema"] == "steadysum.doctor/1"
    assert document["versions"]["steadysum"] == steadysum.__version__
    assert document["environment"]["components"]["torch"]["version"] == torch.__version__
    assert document["exit_code"] == found.exit_code
    assert document["lock"] is None
    assert document["next_steps"] == list(next_steps(found))


def test_an_environment_without_a_lock_is_to_be_locked_and_one_with_it_is_not(found: Examination) -> None:
    assert LOCK in next_steps(found)
    assert LOCK not in next_steps(_with(found))


@pytest.mark.parametrize(
    ("differences", "cann", "code"),
    [((), "8.5.0", 0), ((SWITCH,), "8.5.0", 0), ((DRIVER, SWITCH), "8.5.0", 1), ((), "5.1.RC1", 1), ((), "5.1.RC2", 0)],
)
def test_the_exit_code_is_1_for_drift_of_what_computes_and_for_versions_that_are_bad(
    found: Examination, differences: tuple[Difference, ...], cann: str, code: int
) -> None:
    assert _with(found, differences, cann=cann).exit_code == code


def test_drift_is_the_first_thing_to_put_right(found: Examination) -> None:
    gone = DRIVER._replace(name="cann", locked="8.5.0", here=None)
    came = DRIVER._replace(name="triton", locked=None, here="3.4.0")
    assert next_steps(_with(found, (DRIVER, gone, came, SWITCH), cann="5.0.5"))[0] == (
        "Put back what was locked (npu-driver 25.5.0, cann 8.5.0, triton not installed); or, if the change is meant, "
        "run steadysum check, and save a new lock with steadysum doctor --save."
    )


def test_remedies_of_errors_and_warnings_are_steps_and_those_of_notes_are_not(found: Examination) -> None:
    steps = next_steps(_with(found, cann="5.0.5", npu_chip="910B3", mkl="2024.2"))
    assert any(step.startswith("cann 5.0.5: Install CANN 5.1.RC2 or newer") for step in steps)
    assert any(step.startswith("mkl 2024.2: Call each function once") for step in steps)
    assert not any("round_logits" in step for step in steps)


def test_a_version_that_cannot_be_judged_is_to_be_looked_up(found: Examination) -> None:
    assert next_steps(_with(found, cann="green"))[0] == (
        "Look up the version of cann yourself: 'green' doesn't read as one, and there is a rule on it."
    )


def test_a_machine_with_an_npu_whose_toolkit_is_not_found_is_told_how_to_show_it(found: Examination) -> None:
    steps = next_steps(_with(found, npu_driver="25.5.0"))
    assert steps[0].startswith("CANN's version isn't known: source set_env.sh")
    assert steps[1].startswith("The NPU's kind isn't known: see that npu-smi")
    assert not any("CANN's version isn't known" in step for step in next_steps(_with(found)))


def test_switches_that_let_results_vary_are_named_with_the_values_that_do_not(
    found: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC", "CLOSE_MATMUL_K_SHIFT", "ATB_MATMUL_SHUFFLE_K_ENABLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LCCL_DETERMINISTIC", "1")
    readings = read_switches(frozenset({"cpu", "npu"}))
    (step,) = (step for step in next_steps(_with(found)._replace(readings=readings)) if "bit for bit" in step)
    assert step == (
        "Before runs are compared bit for bit, set torch.use_deterministic_algorithms(True), HCCL_DETERMINISTIC=true, "
        "CLOSE_MATMUL_K_SHIFT=1, ATB_MATMUL_SHUFFLE_K_ENABLE=0. It costs speed."
    )


def test_openmp_twice_and_a_missing_kernel_are_steps(found: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "missing", lambda: "no C++20 compiler was found")
    steps = next_steps(_with(found)._replace(openmp="2 OpenMP libraries are loaded: a and b."))
    assert any(step.startswith("2 OpenMP libraries are loaded: a and b. Install the packages") for step in steps)
    assert any(step.startswith("The native kernel is missing: no C++20 compiler was found. It needs") for step in steps)
