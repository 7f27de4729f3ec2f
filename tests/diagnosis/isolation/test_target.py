"""Tests of isolation.target and isolation.inputs: a mistake is refused with what would have been right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.isolation.inputs import (
    BundleInputs,
    DrawnInputs,
    FileInputs,
    MadeInputs,
    OwnInputs,
    Source,
    check_source,
    make_call,
    source_from_json,
    source_to_json,
)
from steadysum.diagnosis.isolation.target import Loaded, load_target, parse_target
from steadysum.errors import (
    BundleNotFoundError,
    DiagnosisInputsError,
    DiagnosisTargetError,
    DiagnosisTargetNotFoundError,
    WeightsFileNotFoundError,
)
from steadysum.guard.bundle import BundleStore, Evidence

FILE = """
import torch
from dataclasses import dataclass
import neighbour

@dataclass
class Scale:
    factor: float = 2.0
    def __call__(self, x): return x * self.factor

double = Scale()
def add(a, b): return a + b
def of_loss(input, weight, target, scale=1.0): return input @ weight.T
def make_inputs(seed=0): return torch.full((2,), float(seed)), torch.ones(2)
def by_name(): return {"a": torch.ones(1), "b": torch.ones(1)}
def wrong(): return 3
def fails(): raise RuntimeError("no data here")
def stream(x): yield x
constant = 1.0
"""


@pytest.fixture(autouse=True)
def _path_of_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a target's file adds to it is gone after each test: other tests' processes inherit it."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "random.py"  # the name of a module of Python's own, which must stay what it is
    path.write_text(FILE)
    (tmp_path / "neighbour.py").write_text("")
    return path


@pytest.fixture
def load(file: Path) -> Load:
    return Load(file)


class Load:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, name: str) -> Loaded:
        return load_target(parse_target(f"{self.file}:{name}"))


def test_a_callable_is_found_in_a_module_and_in_a_file(load: Load) -> None:
    import random

    assert load_target(parse_target("torch.nn.functional:relu")).call is torch.nn.functional.relu
    assert torch.equal(load("double").call(torch.ones(1)), torch.full((1,), 2.0))
    assert random.random() < 1.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("torch.relu", "Name the callable behind a colon."),
        (":relu", "Name the callable behind a colon."),
        ("torch:re lu", "'re lu' is no name of a callable."),
        ("to rch:relu", "'to rch' is no name of a module."),
        ("some/path:relu", "A path must end in .py."),
    ],
)
def test_a_text_of_another_form_is_refused(text: str, says: str) -> None:
    with pytest.raises(DiagnosisTargetError, match=r"package.module:callable or path/file.py:callable") as caught:
        parse_target(text)
    assert says in str(caught.value)


def test_what_is_not_there_is_refused_before_anything_is_imported(load: Load) -> None:
    with pytest.raises(DiagnosisTargetNotFoundError, match="'no_such_package' can't"):
        parse_target("no_such_package.part:f")
    with pytest.raises(DiagnosisTargetNotFoundError, match="a Python file that is there"):
        parse_target("/no/such/file.py:f")
    with pytest.raises(DiagnosisTargetNotFoundError, match=r"of random .*double, add, of_loss, make_inputs"):
        load("ad")
    with pytest.raises(DiagnosisTargetNotFoundError, match=r"No module named 'torch.no_such_part'"):
        load_target(parse_target("torch.no_such_part:f"))


def test_what_cannot_be_called_as_an_operator_is_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(DiagnosisTargetError, match="a class; allowed: a function"):
        load("Scale")
    with pytest.raises(DiagnosisTargetError, match="a value of type float; allowed"):
        load("constant")
    with pytest.raises(DiagnosisTargetError, match="a coroutine or a generator"):
        load("stream")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(DiagnosisTargetError, match="whose import raises ZeroDivisionError: division by zero"):
        load_target(parse_target(f"{broken}:f"))


def test_make_inputs_gets_the_seed_and_its_result_becomes_the_arguments(load: Load) -> None:
    call = make_call(OwnInputs(seed=5), load("add"), "add")
    assert call.args[0].tolist() == [5.0, 5.0]
    assert call.kwargs == {}
    named = make_call(MadeInputs(f"{load.file}:by_name"), load("add"), "add")
    assert sorted(named.kwargs) == ["a", "b"]


def test_inputs_that_do_not_fit_are_refused_with_what_the_operator_takes(load: Load) -> None:
    with pytest.raises(DiagnosisInputsError, match="a value of type int; allowed: a tuple of arguments"):
        make_call(MadeInputs(f"{load.file}:wrong"), load("add"), "add")
    with pytest.raises(DiagnosisInputsError, match="RuntimeError: no data here"):
        make_call(MadeInputs(f"{load.file}:fails"), load("add"), "add")
    with pytest.raises(DiagnosisInputsError, match=r"2 positional arguments.*allowed: \(x\)"):
        make_call(OwnInputs(), load("double"), "double")
    with pytest.raises(DiagnosisInputsError, match=r"a module without make_inputs\(\)"):
        make_call(OwnInputs(), load_target(parse_target("torch:mul")), "torch:mul")


def test_drawn_inputs_are_for_functions_of_input_weight_and_target(load: Load) -> None:
    drawn = DrawnInputs(Shape(3, 4, 5), torch.bfloat16, seed=1)
    input, weight, target = make_call(drawn, load("of_loss"), "of_loss").args
    assert (input.shape, weight.shape, target.shape) == ((3, 4), (5, 4), (3,))
    assert input.dtype == torch.bfloat16
    assert int(target.max()) < 5
    with pytest.raises(DiagnosisInputsError, match=r"required parameters \(x\); allowed: \(input, weight\) or"):
        make_call(drawn, load("double"), "double")


def test_tensors_of_a_file_are_arguments_by_name_or_by_place(load: Load, tmp_path: Path) -> None:
    one, two = torch.ones(2), torch.zeros(2)
    path = str(tmp_path / "in.safetensors")
    save_file({"b": two, "a": one}, path)
    assert torch.equal(make_call(FileInputs(path), load("add"), "add").kwargs["a"], one)
    save_file({"1": two, "0": one}, path)
    assert [tensor.sum().item() for tensor in make_call(FileInputs(path), load("add"), "add").args] == [2.0, 0.0]
    save_file({"c": two}, path)
    with pytest.raises(
        DiagnosisInputsError, match=r"tensors \['c'\]; allowed: names of the parameters of add \(a, b\)"
    ):
        make_call(FileInputs(path), load("add"), "add")


def test_a_guards_bundle_holds_inputs(load: Load, tmp_path: Path) -> None:
    values = (torch.arange(6.0).view(2, 3).T, torch.ones(3, 2))
    evidence = Evidence("add", None, values, {}, {}, (), "transient", {})
    folder = BundleStore(tmp_path / "bundles").write(evidence)
    call = make_call(BundleInputs(str(folder)), load("add"), "add")
    restored: Tensor = call.args[0]
    assert torch.equal(restored, values[0])
    assert restored.stride() == values[0].stride()


def test_files_that_are_not_there_are_refused_before_any_work() -> None:
    with pytest.raises(WeightsFileNotFoundError, match="a safetensors file that is there"):
        check_source(FileInputs("/no/such.safetensors"))
    with pytest.raises(BundleNotFoundError, match="no folder of this name"):
        check_source(BundleInputs("/no/such/bundle"))
    with pytest.raises(DiagnosisTargetError, match="--inputs: got 'torch'"):
        check_source(MadeInputs("torch"))


@pytest.mark.parametrize(
    "source",
    [
        OwnInputs(3),
        MadeInputs("a:b", 4),
        BundleInputs("c"),
        FileInputs("d"),
        DrawnInputs(Shape(1, 2, 3), torch.float16, 5),
    ],
)
def test_a_source_survives_the_way_to_another_process(source: Source) -> None:
    assert source_from_json(source_to_json(source)) == source
