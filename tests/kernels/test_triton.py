"""What is the triton kernel's own: bits that the problem alone decides, its merge, its sources.

Its values are tested with every other kernel's; what it compiles to in test_triton_compiles.py. Without a GPU all of
this runs in Triton's interpreter, on the CPU.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from steadysum import kernels, linear_cross_entropy, linear_max_sum
from steadysum.kernels import Problem, Promise, chunks, registry, triton
from steadysum.kernels.gradients import Gradients, LogitGradient, Wanted
from steadysum.kernels.problem import Operands, Statistics
from steadysum.maxsum import MaxSum, fold_tree, merge
from steadysum.tiling import Shard

ALL = Wanted(input=True, weight=True, bias=True)
INF, NAN = torch.inf, torch.nan
SOURCES = sorted((Path(triton.__file__).parent / "triton_code").glob("*.py"))

trial = importlib.import_module("steadysum.kernels.triton_code.trial") if find_spec("triton") else None
runs_triton = pytest.mark.skipif(triton.missing() is not None, reason=f"kernel triton is missing: {triton.missing()}")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def operands(input: Tensor, weight: Tensor, **options: Any) -> Operands:
    plain = {"bias": None, "scale": 1.0, "softcap": None, "temperature": None, "valid_vocab": weight.shape[0]}
    return Operands(input, weight, **{**plain, **options})


def problem(
    rows: int, vocab: int = 1100, hidden: int = 70, dtype: torch.dtype = torch.float32, **options: Any
) -> Operands:
    target = torch.arange(rows, device=DEVICE) * 37 % vocab
    x, head = draw(rows, hidden).to(dtype), draw(vocab, hidden, seed=1).to(dtype)
    return operands(
        x, head, target=target, bias=draw(vocab, seed=2), wants_weighted_sum=True, wants_ties=True, **options
    )


def statistics(call: Operands) -> Statistics:
    (found,) = triton.statistics([call])
    return found


def cross_entropy(found: Statistics, start: int, stop: int) -> LogitGradient:
    rows = 1 + torch.arange(start, stop, device=DEVICE) / 8
    return LogitGradient(exp=rows / found.sum_exp, target=-rows)


def same(first: Statistics | Gradients | MaxSum, second: Statistics | Gradients | MaxSum) -> bool:
    pairs = zip(first, second, strict=True)
    return all(one is other is None or torch.equal(one, other) for one, other in pairs)


# --- Bits -------------------------------------------------------------------------------------------------------------
@runs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_rows_bits_do_not_depend_on_its_place_or_on_the_other_rows(dtype: torch.dtype) -> None:
    call = problem(70, dtype=dtype)
    whole = statistics(call)
    wanted = triton.gradients(call, cross_entropy, ALL).input
    assert wanted is not None
    for start, stop in ((0, 1), (1, 3), (30, 70), (69, 70)):
        part = call.rows(start, stop)
        assert same(statistics(part), whole.rows(start, stop))
        found = triton.gradients(part, lambda known, *_: cross_entropy(known, start, stop), ALL).input  # noqa: B023
        assert torch.equal(found, wanted[start:stop])
    order = torch.randperm(70, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    mixed = replace(call, input=call.input[order], target=call.target[order])
    assert same(statistics(mixed), Statistics(*(None if each is None else each[order] for each in whole)))


@runs_triton
def test_the_size_of_chunks_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    call = problem(300, vocab=600, hidden=20)
    whole = triton.gradients(call, cross_entropy, ALL)
    known = triton.gradients(call, cross_entropy, ALL, statistics(call))
    monkeypatch.setattr(chunks, "MOST_ROWS", 128)
    for found in (known, triton.gradients(call, cross_entropy, ALL), triton.gradients(call, cross_entropy, ALL)):
        assert same(found, whole)


@runs_triton
def test_the_memory_for_partials_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    from steadysum.kernels.triton_code import statistics as of_rows

    call = problem(130, vocab=600, hidden=20)
    whole = statistics(call)
    monkeypatch.setattr(of_rows, "PARTIALS_BYTES", 1)
    assert same(statistics(call), whole)


def whole_and_shards(shards: int) -> tuple[Operands, list[tuple[slice, Operands]]]:
    vocab, rows, hidden = 8704, 3, 16  # 16 segments of 544 columns: two tiles each
    x, head, bias = draw(rows, hidden), draw(vocab, hidden, seed=1), draw(vocab, seed=2)
    width = vocab // shards
    cut = [slice(start, start + width) for start in range(0, vocab, width)]
    parts = [operands(x, head[each], bias=bias[each], shard=Shard(each.start, vocab)) for each in cut]
    return operands(x, head, bias=bias), list(zip(cut, parts, strict=True))


@runs_triton
@pytest.mark.parametrize("shards", [2, 4, 8])
def test_shards_that_are_nodes_of_the_tree_have_the_bits_of_the_whole(shards: int) -> None:
    assert Promise.SHARDS in triton.promises
    whole, parts = whole_and_shards(shards)
    nodes = [MaxSum(*statistics(part)[:2]) for _, part in parts]
    assert same(fold_tree(nodes, triton.merge), MaxSum(*statistics(whole)[:2]))


@runs_triton
def test_gradients_of_shards_that_are_nodes_of_the_tree_have_the_bits_of_the_whole() -> None:
    whole, parts = whole_and_shards(4)
    known = statistics(whole)

    def terms(*_: Any) -> LogitGradient:
        return LogitGradient(exp=1 / known.sum_exp)

    wanted = triton.gradients(whole, terms, ALL, known)
    inputs = []
    for columns, part in parts:
        gradients = triton.gradients(part, terms, ALL, known)
        assert torch.equal(gradients.weight, wanted.weight[columns])
        assert torch.equal(gradients.bias, wanted.bias[columns])
        inputs.append(gradients.input)
    assert torch.equal(fold_tree(inputs, torch.add), wanted.input)


@runs_triton
def test_a_shard_that_begins_within_a_segment_is_right() -> None:
    x, head = draw(4, 16), draw(9000, 16, seed=1)
    shard = operands(x, head[700:2000], shard=Shard(700, 9000))
    found = statistics(shard)
    alone = statistics(replace(shard, shard=None))
    assert torch.equal(found.max, alone.max)
    torch.testing.assert_close(found.sum_exp, alone.sum_exp)


@runs_triton
@pytest.mark.parametrize("columns", [128, 512])
def test_blocks_of_any_width_fold_to_right_statistics(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of several blocks, and of one: whichever the device has, both are right (in other bits)."""
    from steadysum.kernels.triton_code import blocks

    if columns == 512 and not triton.interpreted():
        pytest.skip("a block of 512 columns needs more shared memory than some devices have")
    bias = draw(1100, seed=2)
    bias[:300] = -INF  # two blocks of nothing but -inf, then others
    call = replace(problem(5), bias=bias, target=torch.tensor([0, 299, 511, 512, 1099], device=DEVICE))
    usual = statistics(call)
    monkeypatch.setattr(blocks, "BLOCKS", blocks.BLOCKS._replace(columns=columns, rows=16))
    found = statistics(call)
    for name in ("max", "target_logit", "ties"):
        assert torch.equal(getattr(found, name), getattr(usual, name))
    for name in ("sum_exp", "weighted_sum"):
        torch.testing.assert_close(getattr(found, name), getattr(usual, name))


@runs_triton
@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ((-INF, 0.0), (-INF, 0.0), (-INF, 0.0)),
        ((-INF, 0.0), (3.0, 2.0), (3.0, 2.0)),
        ((3.0, 2.0), (3.0, 1.0), (3.0, 3.0)),
        ((INF, 2.0), (5.0, 7.0), (INF, 2.0)),
        ((INF, 2.0), (INF, 1.0), (INF, 3.0)),
        ((NAN, NAN), (INF, 1.0), (NAN, NAN)),
        ((1.0, 1.0), (200.0, 1.0), (200.0, 1.0)),
    ],
)
def test_the_merge_of_two_nodes(
    first: tuple[float, float], second: tuple[float, float], merged: tuple[float, float]
) -> None:
    def node(values: tuple[float, float]) -> MaxSum:
        return MaxSum(*(torch.tensor([[each]], device=DEVICE) for each in values))

    for pair in ((first, second), (second, first)):
        found = triton.merge(*map(node, pair))
        torch.testing.assert_close(found, node(merged), rtol=0, atol=0, equal_nan=True)


@runs_triton
def test_the_merge_has_the_published_bits(needs_native: object) -> None:
    """docs/bits.md, as `native` computes it: so shards may be merged by steadysum.merge on the CPU as well."""
    maxima = 40 * torch.rand(2, 3000, generator=torch.Generator().manual_seed(4)) - 20
    maxima[:, :400] *= 10
    sums = 1 + 100 * torch.rand(2, 3000, generator=torch.Generator().manual_seed(5))
    nodes = [MaxSum(*pair) for pair in zip(maxima, sums, strict=True)]
    found = triton.merge(*(MaxSum(*(each.to(DEVICE) for each in node)) for node in nodes))
    assert same(MaxSum(*(each.cpu() for each in found)), merge(*nodes))


@runs_triton
def test_the_merge_of_nothing() -> None:
    nothing = MaxSum(torch.empty(0, device=DEVICE), torch.empty(0, device=DEVICE))
    assert triton.merge(nothing, nothing).max.shape == (0,)


# --- Layouts and edges ------------------------------------------------------------------------------------------------
@runs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strides_change_no_bit(dtype: torch.dtype) -> None:
    call = problem(5, vocab=600, hidden=40, dtype=dtype)
    whole = triton.gradients(call, cross_entropy, ALL)
    wide = torch.full((600, 81), 9.0, dtype=dtype, device=DEVICE)
    wide[:, 1::2] = call.weight
    x, bias = call.input.T.contiguous().T, call.bias.repeat_interleave(2)[::2]
    for weight in (call.weight.T.contiguous().T, wide[:, 1::2]):
        strided = replace(call, input=x, weight=weight, bias=bias)
        assert same(statistics(strided), statistics(call))
        assert same(triton.gradients(strided, cross_entropy, ALL), whole)
    row = replace(call, input=call.input[:1].expand(5, 40))
    assert same(statistics(row), statistics(replace(row, input=row.input.contiguous())))


@runs_triton
def test_a_masked_target_has_a_logit_of_minus_infinity() -> None:
    call = problem(3, valid_vocab=600)
    call = replace(call, target=torch.tensor([599, 600, 1099], device=DEVICE))
    found = statistics(call)
    assert found.target_logit is not None
    assert found.target_logit.isinf().tolist() == [False, True, True]


@runs_triton
def test_targets_are_exact_far_beyond_2_to_the_24() -> None:
    """Column numbers are never rounded to fp32: 2^24 and its neighbours are told apart."""
    vocab = 2**24 + 600
    head = torch.zeros(1, 1, device=DEVICE).expand(vocab, 1)
    bias = torch.zeros(vocab, device=DEVICE)
    bias[2**24 + 1] = 5.0
    target = torch.tensor([2**24, 2**24 + 1, 2**24 + 2], device=DEVICE)
    width = 2048
    columns = slice(2**24 - 1024, 2**24 - 1024 + width)
    shard = Shard(2**24 - 1024, vocab)
    call = operands(
        torch.ones(3, 1, device=DEVICE), head[columns], bias=bias[columns], target=target - columns.start, shard=shard
    )
    found = statistics(call)
    assert found.target_logit is not None
    assert found.target_logit.tolist() == [0.0, 5.0, 0.0]


# --- Which kernel runs ------------------------------------------------------------------------------------------------
@runs_triton
def test_the_triton_code_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from steadysum.kernels.triton_code import gradients, products
    from steadysum.kernels.triton_code import statistics as of_rows

    ran: list[str] = []

    def seen(module: Any, name: str) -> None:
        right: Callable[..., Any] = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *arguments: (ran.append(name), right(*arguments))[1])

    seen(of_rows, "tile_partials")
    seen(of_rows, "fold_partials")
    seen(gradients, "logit_gradient_")
    seen(gradients, "input_gradient")
    seen(products, "fold_sums")
    seen(gradients, "add_weight_gradient")
    x, head = draw(3, 8).requires_grad_(), draw(600, 8, seed=1).requires_grad_()
    linear_max_sum(x.detach(), head.detach(), kernel="triton")
    assert ran == ["tile_partials", "fold_partials"]
    ran.clear()
    linear_cross_entropy(x, head, torch.tensor([0, 1, 599], device=DEVICE), kernel="triton").backward()
    forward = [
        "tile_partials",
        "fold_partials",
        "logit_gradient_",
        "add_weight_gradient",
        "input_gradient",
        "fold_sums",
    ]
    assert ran == forward


def test_an_interpreted_kernel_runs_only_when_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "missing", lambda: None)
    monkeypatch.setattr(triton, "interpreted", lambda: True)
    one = Problem(rows=4, hidden=8, vocab=100)
    assert triton.supports(one) is None
    assert registry.select(one).name != "triton"
    assert registry.select(one, "triton").name == "triton"
    assert kernels.explain(one).reasons["triton"] == (
        "it runs only when it is named, since Triton interprets it here, for tests"
    )
    with kernels.use("triton"):
        assert kernels.explain(one).kernel == registry.select(one).name == "triton"


def test_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "there is no CUDA or ROCm device; with TRITON_INTERPRET=1" in str(triton.missing())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)  # so that nothing is tried
    one = Problem(rows=4, hidden=8, vocab=100)
    assert triton.supports(one) == "triton runs on CUDA and ROCm devices, not on cpu"
    cuda = torch.device("cuda", 0)
    assert triton.supports(replace(one, device=cuda)) is None
    assert triton.supports(replace(one, device=cuda, dtype=torch.float64)) == (
        "triton computes float32, bfloat16 and float16, not torch.float64"
    )
    monkeypatch.setattr(triton, "find_spec", lambda _: None)
    assert triton.missing() == "triton isn't installed: pip install 'steadysum[triton]'"


def test_products_are_rounded_to_tf32_only_where_torchs_own_are() -> None:
    if triton.missing() is not None:
        pytest.skip(f"kernel triton is missing: {triton.missing()}")
    from steadysum.kernels.triton_code.products import product_precision
    from steadysum.kernels.triton_code.statistics import precision

    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "ieee"
        assert [precision(each) for each in (torch.float32, torch.bfloat16)] == ["ieee", "ieee"]
        matmul.fp32_precision = "tf32"
        assert [precision(each) for each in (torch.float32, torch.bfloat16)] == ["tf32", "ieee"]
    finally:
        matmul.fp32_precision = before
    assert product_precision(torch.float32, "ieee") == "ieee"
    assert product_precision(torch.float16, "ieee") == ("ieee" if torch.version.hip else "tf32x3")


# --- Sources ----------------------------------------------------------------------------------------------------------
def test_no_source_tunes_itself_or_adds_atomically() -> None:
    """Either would let something besides the problem decide the order of a sum."""
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    assert "dot" in names
    assert not {name for name in names if "atomic" in name or "autotune" in name or "heuristics" in name}


def run_python(program: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**clean, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_steadysum_does_not_import_triton() -> None:
    program = (
        "import sys, steadysum; from steadysum import kernels; kernels.available(); print('triton' in sys.modules)"
    )
    assert run_python(program) == "False"


# --- The trial before the first call ----------------------------------------------------------------------------------
@runs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_trial_finds_nothing_wrong(dtype: torch.dtype) -> None:
    assert trial.trial.__wrapped__(torch.device(DEVICE), dtype, True) is None


@runs_triton
def test_the_trial_notices_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    from steadysum.kernels.triton_code import gradients as code
    from steadysum.kernels.triton_code import statistics as statistics_code

    right, product = statistics_code.statistics, code.add_weight_gradient
    monkeypatch.setattr(statistics_code, "statistics", lambda *given: right(*given)._replace(max=torch.zeros(5)))
    reason = trial.trial.__wrapped__(torch.device(DEVICE), torch.float32, False)
    assert reason == f"a trial of triton on {DEVICE} gave a wrong max"
    monkeypatch.undo()

    def one_wrong(*arguments: Any) -> None:
        product(*arguments)
        arguments[-1][599, 69] += 1e-2

    monkeypatch.setattr(code, "add_weight_gradient", one_wrong)
    reason = trial.trial.__wrapped__(torch.device(DEVICE), torch.float32, True)
    assert reason == f"a trial of triton on {DEVICE} gave a wrong gradient of weight"


@runs_triton
def test_a_trial_that_fails_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*_: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC.")

    monkeypatch.setattr(trial, "_errors", no_compiler)
    reason = trial.trial.__wrapped__(torch.device(DEVICE), torch.float32, False)
    assert reason == f"a trial of triton on {DEVICE} failed (RuntimeError: Failed to find C compiler.)"


def test_a_device_is_asked_about_by_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    asked: list[Any] = []
    monkeypatch.setattr(triton, "missing", lambda: None)
    monkeypatch.setattr(triton, "interpreted", lambda: False)
    monkeypatch.setattr(trial, "trial", lambda *about: asked.append(about) or "it is too old")
    problem = Problem(rows=1, hidden=8, vocab=9, device=torch.device("cuda"), wants=frozenset({"gradients"}))
    assert triton.supports(problem) == "it is too old"
    assert asked == [(torch.device("cuda"), torch.float32, True)]


def test_an_old_triton_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(triton, "version", lambda _: "3.3.1")
    assert triton.missing() == "triton 3.3 is installed, which is older than 3.4"
