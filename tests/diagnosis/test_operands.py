"""Tests of steadysum.diagnosis.operands and arguments: files that work, and each way in which they don't."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from steadysum.diagnosis import memory
from steadysum.diagnosis.arguments import Shape, parse_dtype, parse_shape, parse_threads
from steadysum.diagnosis.operands import OperandSource, load_tensor, random_operands
from steadysum.diagnosis.subject import Operands
from steadysum.errors import RangeError, SteadySumError, WeightsFileError, WeightsFileNotFoundError

HEAD = torch.arange(80.0).view(20, 4)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Files of every kind, by name."""
    save_file({"head": HEAD}, tmp_path / "one.safetensors")
    save_file({"head": HEAD, "norm": torch.ones(4), "half": HEAD.bfloat16()}, tmp_path / "many.safetensors")
    save_file({"states": torch.ones(2, 3, 4)}, tmp_path / "states.safetensors")
    save_file({"states": torch.ones(2, 5)}, tmp_path / "wide.safetensors")
    save_file({"vector": torch.ones(4)}, tmp_path / "vector.safetensors")
    save_file({"ids": torch.ones(20, 4, dtype=torch.int64)}, tmp_path / "ids.safetensors")
    save_file({"head": torch.ones(0, 4)}, tmp_path / "empty.safetensors")
    save_file({"states": torch.ones(0, 4)}, tmp_path / "nobody.safetensors")
    save_file({"head": HEAD}, tmp_path / "odd:name.safetensors")
    (tmp_path / "text.safetensors").write_text("not a tensor in sight")
    return {path.name.removesuffix(".safetensors"): str(path) for path in tmp_path.iterdir()}


def load(**options: object) -> Operands:
    source = OperandSource(**{"shapes": (), **options})  # type: ignore[arg-type]
    (operands,) = source.load()
    return operands


def test_the_only_tensor_of_a_file_needs_no_name(files: dict[str, str]) -> None:
    operands = load(weights=files["one"])
    assert torch.equal(operands.weight, HEAD)
    assert operands.shape == (256, 4, 20)
    assert operands.source == "one.safetensors, random hidden states"


def test_a_tensor_is_named_after_a_colon_and_a_file_may_have_one_itself(files: dict[str, str]) -> None:
    assert load_tensor(files["many"] + ":half", "--weights").dtype == torch.bfloat16
    assert torch.equal(load_tensor(files["odd:name"], "--weights"), HEAD)


def test_hidden_states_of_any_rank_become_rows(files: dict[str, str]) -> None:
    operands = load(weights=files["one"], inputs=files["states"])
    assert operands.shape == (6, 4, 20)
    assert operands.source == "one.safetensors, states.safetensors"


def test_a_dtype_converts_both(files: dict[str, str]) -> None:
    operands = load(weights=files["many"] + ":half", inputs=files["states"], dtypes=(torch.float16,))
    assert operands.input.dtype == operands.weight.dtype == torch.float16


def test_a_shape_beside_weights_gives_the_number_of_random_rows(files: dict[str, str]) -> None:
    assert load(weights=files["one"], shapes=(Shape(7, 4, 20),)).shape == (7, 4, 20)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"weights": "{one}.gone"}, WeightsFileNotFoundError, "no file of this name; allowed: an existing safetensors"),
        ({"weights": "{one}:tail"}, WeightsFileError, "got no tensor 'tail' in it; allowed: head [20, 4]. Name one as"),
        (
            {"weights": "{many}"},
            WeightsFileError,
            "3 tensors and no name; allowed: half [20, 4], head [20, 4], norm [4]",
        ),
        ({"weights": "{text}"}, WeightsFileError, "a file that can't be read as safetensors"),
        ({"weights": "{folder}"}, WeightsFileError, "got a path that is a folder"),
        ({"weights": "{vector}"}, RuntimeError, "got shape [4]; allowed: [V, H], V and H > 0. Name another tensor."),
        ({"weights": "{states}"}, RuntimeError, "got shape [2, 3, 4]; allowed: [V, H]"),
        ({"weights": "{empty}"}, RuntimeError, "got shape [0, 4]; allowed: [V, H], V and H > 0"),
        ({"weights": "{ids}"}, RuntimeError, "got int64; allowed: fp32, bf16, fp16"),
        ({"weights": "{one}", "inputs": "{vector}"}, RuntimeError, "[..., H] with at least two dimensions"),
        ({"weights": "{one}", "inputs": "{nobody}"}, RuntimeError, "got shape [0, 4]; allowed: [..., H]"),
        ({"weights": "{one}", "inputs": "{wide}"}, RuntimeError, "got 5 (shape [2, 5]); allowed: 4, as of --weights"),
        (
            {"weights": "{many}:half", "inputs": "{states}"},
            RuntimeError,
            "got fp32 and bf16; allowed: one dtype for both",
        ),
        (
            {"weights": "{one}", "shapes": (Shape(7, 5, 20),)},
            RuntimeError,
            "got 7,5,20; allowed: 7,4,20, as in the files",
        ),
        ({"inputs": "{states}"}, ValueError, "only together with --weights"),
    ],
)
def test_every_mistake_has_its_own_text(
    options: dict[str, object], kind: type[Exception], text: str, files: dict[str, str], tmp_path: Path
) -> None:
    def filled(value: object) -> object:
        return value.format(**files, folder=tmp_path) if isinstance(value, str) else value

    with pytest.raises(kind) as caught:
        load(**{key: filled(value) for key, value in options.items()})
    assert isinstance(caught.value, SteadySumError)
    assert text in str(caught.value)


def test_operands_larger_than_the_memory_are_refused() -> None:
    with pytest.raises(
        RangeError, match=r"whose operands take 4,096\.0 TiB; allowed: operands that fit into memory \(.* available\)"
    ):
        random_operands(Shape(1 << 30, 1 << 20, 1), torch.float32, seed=0)


def test_random_operands_depend_on_the_seed_alone() -> None:
    first, again, other = (random_operands(Shape(3, 4, 5), torch.bfloat16, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)
    assert first.input.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (
            parse_shape,
            "1,2",
            "--shape: got '1,2'; allowed: N,H,V: three integers > 0. For example --shape 1024,256,512.",
        ),
        (parse_shape, "1,2,x", "got '1,2,x'; allowed: N,H,V"),
        (parse_shape, "0,2,3", "got '0,2,3'; allowed: N,H,V"),
        (parse_shape, "1,2,99999999999999999999", "allowed: N,H,V"),
        (parse_dtype, "fp64", "--dtype: got 'fp64'; allowed: fp32, bf16, fp16"),
        (parse_threads, "0", "--threads: got '0'; allowed: integers from 1 to"),
        (parse_threads, "1,,2", "--threads: got '1,,2'"),
        (parse_threads, "1,100000", "--threads: got '1,100000'"),
    ],
)
def test_options_that_cannot_be_are_refused(parse: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(RangeError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_thread_counts_are_sorted_and_counted_once() -> None:
    assert parse_threads("8, 1,2,1") == (1, 2, 8)


def test_the_memory_of_a_shape_counts_the_conversion_to_its_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(2, 8, 6)  # 64 numbers
    monkeypatch.setattr(memory, "available_memory", lambda: 64 * 4)
    assert random_operands(shape, torch.float32, seed=0).shape == shape
    with pytest.raises(RangeError, match="2,8,6, whose operands take"):
        random_operands(shape, torch.bfloat16, seed=0)


def test_a_containers_limit_bounds_the_available_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    whole = memory.available_memory()
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert memory.available_memory() == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() > whole / 2
