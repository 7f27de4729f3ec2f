"""`native` gives the same loss and gradients whatever surrounds them: threads, instruction set, strides, load, batch.

As test_same_bits.py, for the differentiable functions. A batch decides which rows are summed up in the gradients of
weight and bias, so that across batches the gradients of input are compared, and the losses of rows. That these bits
are the published ones is the business of tests/native.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steadysum import linear_cross_entropy, linear_logprobs, linear_max_sum, linear_softmax

from .same_bits import (
    DTYPES,
    HIDDENS,
    ISAS,
    LAYOUTS,
    ROWS,
    THREADS,
    VOCABS,
    Case,
    assert_same,
    draw_case,
    drawn,
    instructions,
    joined,
    picked,
    transposed,
)

pytestmark = pytest.mark.usefixtures("needs_native")

# Three or four products, once for each part of a batch: drawn problems are smaller than those of test_same_bits.py.
MOST_WORK: Final = 200_000
MOST_WORK_OF_A_ROW: Final = 1_100_000  # 128 * 8193, or 256 * 1300 and less

# Above 2^20 multiply-adds threads share the work. Between them these have several blocks of 128 rows, a ragged tile, 16
# segments, and more rows than one chunk holds (1024).
LARGE: Final = ((300, 129, 520), (33, 130, 9000), (5, 300, 1300), (1100, 40, 530))


@dataclass(frozen=True, eq=False)
class Training:
    """One problem, with what a loss needs, and upstream gradients."""

    case: Case
    ignoring: Tensor  # [N], targets, some of them -100
    class_weight: Tensor  # [V]
    probabilities: Tensor  # [N, V]
    upstream: Tensor  # [2, N], and for a softmax:
    dense: Tensor  # [N, V]

    def __repr__(self) -> str:  # what hypothesis prints
        return repr(self.case)

    def rows(self, index: Tensor) -> Training:
        """The same problem for some of its rows."""
        return Training(
            self.case.rows(index),
            self.ignoring[index],
            self.class_weight,
            self.probabilities[index],
            self.upstream[:, index],
            self.dense[index],
        )

    @property
    def options(self) -> dict[str, Any]:
        """The options of a loss, which has no temperature."""
        return {name: value for name, value in self.case.options.items() if name not in ("bias", "temperature")}


def draw(shape: tuple[int, int, int], dtype: torch.dtype, *, everything: bool, seed: int = 0) -> Training:
    case = draw_case(shape, dtype, everything=everything, seed=seed)
    N, _, V = shape
    generator = torch.Generator().manual_seed(seed + 1000)
    left_out = torch.rand(N, generator=generator) < 0.2
    return Training(
        case,
        case.target.masked_fill(left_out, -100),
        torch.rand(V, generator=generator).to(dtype),
        torch.rand(N, V, generator=generator),
        torch.randn(2, N, generator=generator),
        torch.randn(N, V, generator=generator),
    )


Leaves = dict[str, Tensor]  # input, weight, and, if there is one, bias
Results = dict[str, tuple[Tensor, Tensor | None]]  # by name, each with its upstream gradient; None: 1


def cross_entropy(reduction: str, **options: Any) -> Callable[[Training, Leaves], Results]:
    def run(training: Training, leaves: Leaves) -> Results:
        own = dict(options)
        probabilities = own.pop("probabilities", False)
        if own.pop("weighted", False):
            own["weight"] = training.class_weight
        loss = linear_cross_entropy(
            leaves["input"],
            leaves["weight"],
            training.probabilities if probabilities else training.ignoring,
            linear_bias=leaves.get("bias"),
            reduction=reduction,
            kernel="native",
            **training.options,
            **own,
        )
        return {"loss": (loss, training.upstream[0] if reduction == "none" else None)}

    return run


def with_options(training: Training, leaves: Leaves) -> dict[str, Any]:
    return {**training.case.options, "bias": leaves.get("bias"), "kernel": "native"}


def logprobs(training: Training, leaves: Leaves) -> Results:
    found = linear_logprobs(
        leaves["input"],
        leaves["weight"],
        training.case.target,
        return_entropy=True,
        **with_options(training, leaves),
    )
    return {name: (found[i], training.upstream[i]) for i, name in enumerate(("logprobs", "entropy"))}


def max_sum(training: Training, leaves: Leaves) -> Results:
    found = linear_max_sum(leaves["input"], leaves["weight"], **with_options(training, leaves))
    return {name: (found[i], training.upstream[i]) for i, name in enumerate(("max", "sum_exp"))}


def softmax(training: Training, leaves: Leaves) -> Results:
    found = linear_softmax(leaves["input"], leaves["weight"], **with_options(training, leaves))
    return {"softmax": (found, training.dense)}


class Function(NamedTuple):
    run: Callable[[Training, Leaves], Results]
    by_row: tuple[str, ...]  # what a row has whatever the batch: not the mean's gradient, which is divided by a count


FUNCTIONS: Final = {
    "mean": Function(cross_entropy("mean"), ()),
    "mean, smoothed and weighted, z-loss": Function(
        cross_entropy("mean", label_smoothing=0.1, weighted=True, z_loss=1e-3), ()
    ),
    "mean of probabilities": Function(cross_entropy("mean", probabilities=True), ()),
    "sum": Function(cross_entropy("sum"), ("input",)),
    "sum, smoothed and weighted": Function(cross_entropy("sum", label_smoothing=0.1, weighted=True), ("input",)),
    "sum, filtered": Function(cross_entropy("sum", gradient_filter=1e-3), ("input",)),
    "none, z-loss": Function(cross_entropy("none", z_loss=1e-3), ("loss", "input")),
    "none, smoothed and weighted": Function(
        cross_entropy("none", label_smoothing=0.1, weighted=True), ("loss", "input")
    ),
    "none, of probabilities, smoothed and weighted": Function(
        cross_entropy("none", probabilities=True, label_smoothing=0.1, weighted=True), ("loss", "input")
    ),
    "logprobs and entropy": Function(logprobs, ("logprobs", "entropy", "input")),
    "max_sum": Function(max_sum, ("max", "sum_exp", "input")),
    "softmax": Function(softmax, ("softmax", "input")),
}
BY_ROW: Final = [name for name, function in FUNCTIONS.items() if function.by_row]


def outcome(name: str, training: Training) -> dict[str, Tensor]:
    """The results of a function, and the gradients of input, weight and bias."""
    case = training.case
    operands = {"input": case.input, "weight": case.weight, "bias": case.options.get("bias")}
    leaves = {which: each.detach().requires_grad_() for which, each in operands.items() if each is not None}
    results = FUNCTIONS[name].run(training, leaves)
    values, upstream = zip(*results.values(), strict=True)
    gradients = torch.autograd.grad(values, list(leaves.values()), upstream)
    assert all(gradient.isfinite().all() for gradient in gradients)
    return {
        **{result: value.detach() for result, value in zip(results, values, strict=True)},
        **dict(zip(leaves, gradients, strict=True)),
    }


def row_outcome(name: str, training: Training) -> dict[str, Tensor]:
    """Of the outcome, what each row has of its own."""
    found = outcome(name, training)
    return {which: found[which] for which in FUNCTIONS[name].by_row}


@st.composite
def trainings(draw_from: st.DrawFn) -> Training:
    """Problems around the boundaries of blocks, tiles and segments."""
    sizes = [(hidden, vocab) for hidden in HIDDENS for vocab in VOCABS if hidden * vocab <= MOST_WORK_OF_A_ROW]
    hidden, vocab = draw_from(st.sampled_from(sizes))
    affordable = [rows for rows in (*ROWS, 129, 257) if rows == 1 or rows * hidden * vocab <= MOST_WORK]
    shape = (draw_from(st.sampled_from(affordable)), hidden, vocab)
    dtype, everything, seed = draw_from(st.tuples(st.sampled_from(DTYPES), st.booleans(), st.integers(0, 99)))
    return draw(shape, dtype, everything=everything, seed=seed)


functions = st.sampled_from(list(FUNCTIONS))
functions_by_row = st.sampled_from(BY_ROW)


# ---- instruction sets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "portable"], indirect=True)
@settings(drawn, max_examples=40)
@given(name=functions, training=trainings())
def test_gradients_do_not_depend_on_the_instruction_set(
    needs_native: ModuleType, isa: str, name: str, training: Training
) -> None:
    found = outcome(name, training)
    with instructions(needs_native, "portable"):
        assert_same(outcome(name, training), found)


# ---- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_do_not_depend_on_the_number_of_threads(
    name: str, shape: tuple[int, int, int], threads: Callable[[int], None]
) -> None:
    dtype = DTYPES[LARGE.index(shape) % len(DTYPES)]
    training = draw(shape, dtype, everything=shape[0] % 2 == 1)
    threads(THREADS[0])
    alone = outcome(name, training)
    for count in THREADS[1:]:
        threads(count)
        assert_same(outcome(name, training), alone, f"with {count} threads")


@pytest.mark.parametrize("isa", ["portable"], indirect=True)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_the_portable_code_do_not_depend_on_the_number_of_threads(
    isa: str, name: str, threads: Callable[[int], None]
) -> None:
    training = draw((130, 16, 530), torch.float32, everything=True)  # 1.1 million multiply-adds: just above 2^20
    threads(THREADS[0])
    alone = outcome(name, training)
    for count in THREADS[1:]:
        threads(count)
        assert_same(outcome(name, training), alone, f"with {count} threads")


# ---- batch ---------------------------------------------------------------------------------------------------------


@settings(drawn, max_examples=12)
@given(name=functions_by_row, training=trainings(), data=st.data())
def test_input_gradients_do_not_depend_on_order_and_cuts_of_the_batch(
    isa: str, threads: Callable[[int], None], name: str, training: Training, data: st.DataObject
) -> None:
    N = training.case.input.shape[0]
    threads(data.draw(st.sampled_from(THREADS), label="threads"))
    whole = row_outcome(name, training)

    order = torch.tensor(data.draw(st.permutations(range(N)), label="order"))
    assert_same(row_outcome(name, training.rows(order)), picked(whole, order), "shuffled")

    cuts = data.draw(st.lists(st.integers(1, N), max_size=4, unique=True).map(sorted), label="cuts")
    edges = [0, *(cut for cut in cuts if cut < N), N]
    parts = [row_outcome(name, training.rows(torch.arange(*edge))) for edge in pairwise(edges)]
    assert_same(joined(parts), whole, "split")

    again = torch.tensor(data.draw(st.lists(st.integers(0, N - 1), min_size=1, max_size=9), label="some rows"))
    assert_same(row_outcome(name, training.rows(again)), picked(whole, again), "some rows, some of them repeatedly")


@pytest.mark.parametrize("name", BY_ROW)
def test_every_rows_input_gradient_is_that_of_the_row_alone(name: str, threads: Callable[[int], None]) -> None:
    training = draw((67, 130, 530), torch.bfloat16, everything=True)
    threads(3)
    whole = row_outcome(name, training)
    rows = torch.arange(67)
    for size in (1, 34):
        parts = [row_outcome(name, training.rows(part)) for part in rows.split(size)]
        assert_same(joined(parts), whole, f"in batches of {size}")


@pytest.mark.parametrize("name", BY_ROW)
def test_input_gradients_do_not_depend_on_the_batch_where_threads_share_it(
    name: str, threads: Callable[[int], None]
) -> None:
    threads(3)
    for shape in ((1100, 16, 530), (40, 40, 9000)):
        training = draw(shape, torch.float32, everything=True)
        whole = row_outcome(name, training)
        order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(0))
        parts = [row_outcome(name, training.rows(part)) for part in order.split([1, 3, 17, shape[0] - 21])]
        assert_same(joined(parts), picked(whole, order), "shuffled and split")


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_do_not_depend_on_strides_and_alignment(
    isa: str, name: str, layout: Callable[[Tensor], Tensor]
) -> None:
    dtype = DTYPES[LAYOUTS.index(layout) % len(DTYPES)]
    training = draw((19, 37, 529), dtype, everything=True)
    expected = outcome(name, training)
    case = training.case
    strided = Training(
        Case(layout(case.input), layout(case.weight), case.target, case.options),
        training.ignoring,
        training.class_weight,
        layout(training.probabilities),
        layout(training.upstream),
        layout(training.dense),
    )
    assert not bool(strided.probabilities.is_contiguous() and strided.probabilities.storage_offset() == 0)
    assert_same(outcome(name, strided), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_strided_operands_are_the_same_where_threads_share_them(
    layout: Callable[[Tensor], Tensor], threads: Callable[[int], None]
) -> None:
    threads(3)
    training = draw((65, 130, 1300), torch.float32, everything=True)
    case = training.case
    for name in ("mean", "logprobs and entropy"):
        strided = Case(layout(case.input), layout(case.weight), case.target, case.options)
        assert_same(outcome(name, Training(strided, *_beside(training))), outcome(name, training), name)


def _beside(training: Training) -> tuple[Tensor, ...]:
    return training.ignoring, training.class_weight, training.probabilities, training.upstream, training.dense


def test_an_upstream_gradient_of_any_strides_has_the_same_effect(isa: str) -> None:
    training = draw((19, 37, 529), torch.float32, everything=False)
    x, head = training.case.input.requires_grad_(), training.case.weight.requires_grad_()
    losses = linear_cross_entropy(x, head, training.case.target, reduction="none", kernel="native")
    for upstream in (transposed(training.upstream)[0], torch.ones(1).expand(19), training.upstream[0].flip(0)):
        strided, contiguous = (
            torch.autograd.grad(losses, (x, head), each, retain_graph=True)
            for each in (upstream, upstream.clone(memory_format=torch.contiguous_format))
        )
        assert_same(dict(zip("xw", strided, strict=True)), dict(zip("xw", contiguous, strict=True)))


# ---- the same gradients by other ways --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1100, 40, 530), (33, 130, 9000)], ids=str)
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "weighted": True}], ids=["plain", "smoothed"])
def test_gradients_formed_in_the_forward_pass_are_those_of_the_backward_pass(
    shape: tuple[int, int, int], options: dict[str, Any]
) -> None:
    """reduction="sum" has the first, in chunks of the size that whole logits allow; "none" the others."""
    training = draw(shape, torch.bfloat16, everything=True)
    leaves = {name: getattr(training.case, name).detach().requires_grad_() for name in ("input", "weight")}

    def gradients(reduction: str) -> dict[str, Tensor]:
        loss, _ = cross_entropy(reduction, **options)(training, leaves)["loss"]
        return dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))

    assert_same(gradients("none"), gradients("sum"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_has_the_same_bits_whichever_others_are_wanted(name: str) -> None:
    training = draw((33, 37, 1300), torch.bfloat16, everything=True)
    case = training.case
    operands = {"input": case.input, "weight": case.weight, "bias": case.options["bias"]}
    expected = outcome(name, training)
    for which in operands:
        leaves = {other: each.detach().requires_grad_(other == which) for other, each in operands.items()}
        values, upstream = zip(*FUNCTIONS[name].run(training, leaves).values(), strict=True)
        (found,) = torch.autograd.grad(values, [leaves[which]], upstream)
        assert_same({which: found}, {which: expected[which]})


# ---- the machine, the caller -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mean, smoothed and weighted, z-loss", "logprobs and entropy"])
def test_gradients_are_equal_in_20_calls_under_load_from_other_processes(
    load: None, name: str, threads: Callable[[int], None]
) -> None:
    training = draw((64, 65, 1300), torch.float32, everything=True)
    threads(1)
    expected = outcome(name, training)
    for call in range(20):
        threads(THREADS[call % len(THREADS)])
        assert_same(outcome(name, training), expected, f"in call {call}")
