"""MaxSum is a commutative monoid, and the fold merges in one canonical order."""

from __future__ import annotations

import copy
import math
import pickle
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadysum import MaxSum, _extension, linear_max_sum
from steadysum.errors import DeviceError, DtypeError, GradientError, OperandTypeError, ShapeError
from steadysum.maxsum import fold, fold_tree, identity, merge, merge_by_torch, merges_on

INF = math.inf
U = 2.0**-24  # half an ulp of 1 in fp32

# Two max are equal or 200 apart, where exp is 0 in fp32; sums are small integers: every merge is exact.
exact_rows = st.tuples(st.sampled_from([-INF, -200.0, 0.0, 200.0]), st.integers(1, 1000)).map(
    lambda row: (row[0], 0 if row[0] == -INF else row[1])
)
exact = exact_rows.map(lambda row: MaxSum(torch.tensor([row[0]]), torch.tensor([float(row[1])])))
merges = pytest.mark.parametrize("merged", [merge, merge_by_torch])


def same(first: MaxSum, second: MaxSum) -> bool:
    return torch.equal(first.max, second.max) and torch.equal(first.sum_exp, second.sum_exp)


@merges
@given(exact, exact, exact)
def test_merge_is_associative_where_arithmetic_is_exact(merged, a: MaxSum, b: MaxSum, c: MaxSum) -> None:
    assert same(merged(merged(a, b), c), merged(a, merged(b, c)))


@merges
@given(exact, exact)
def test_merge_is_commutative_where_arithmetic_is_exact(merged, a: MaxSum, b: MaxSum) -> None:
    assert same(merged(a, b), merged(b, a))


@merges
@given(st.floats(-(2.0**100), 2.0**100, width=32), st.floats(1, 2**17, width=32))
def test_identity_changes_no_bit(merged, largest: float, total: float) -> None:
    row = MaxSum(torch.tensor([largest]), torch.tensor([total]))
    assert same(merged(row, identity([1])), row)
    assert same(merged(identity([1]), row), row)


@merges
@given(*(st.floats(-50, 50, width=32), st.floats(1, 2**17, width=32)) * 2)
def test_merge_is_within_the_rounding_bound_of_float64(merged, m1: float, s1: float, m2: float, s2: float) -> None:
    found = merged(MaxSum(*torch.tensor([[m1], [s1]])), MaxSum(*torch.tensor([[m2], [s2]])))
    largest = max(m1, m2)
    wanted = s1 * math.exp(m1 - largest) + s2 * math.exp(m2 - largest)
    # relative: the rounded difference d changes exp by |d| u; exp itself, a product, a sum: 2u, u, u
    assert found.max.item() == largest
    assert abs(found.sum_exp.item() - wanted) <= wanted * U * (abs(m1 - m2) + 5)


@merges
@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ((-INF, 0.0), (-INF, 0.0), (-INF, 0.0)),
        ((-INF, 0.0), (3.0, 2.0), (3.0, 2.0)),
        ((INF, 2.0), (3.0, 2.0), (INF, 2.0)),
        ((INF, 2.0), (INF, 3.0), (INF, 5.0)),
        ((INF, 2.0), (-INF, 0.0), (INF, 2.0)),
        ((math.nan, math.nan), (3.0, 2.0), (math.nan, math.nan)),
        ((math.nan, math.nan), (INF, 2.0), (math.nan, math.nan)),
        ((math.nan, math.nan), (-INF, 0.0), (math.nan, math.nan)),
    ],
)
def test_merge_of_rows_that_are_not_finite(merged, first, second, wanted) -> None:
    for a, b in ((first, second), (second, first)):
        found = merged(MaxSum(*torch.tensor(a)[:, None]), MaxSum(*torch.tensor(b)[:, None]))
        torch.testing.assert_close((found.max.item(), found.sum_exp.item()), wanted, rtol=0, atol=0, equal_nan=True)


def test_merge_takes_any_shape_and_strides() -> None:
    m, s = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.full((2, 3), 2.0)
    transposed = MaxSum(m.T, s.T)
    assert same(merge(transposed, transposed), MaxSum(m.T, s.T * 2))
    scalar = MaxSum(torch.tensor(1.0), torch.tensor(2.0))
    assert merge(scalar, scalar).max.shape == ()
    assert merge(identity([0]), identity([0])).max.shape == (0,)
    doubles = MaxSum(m.double(), s.double())
    assert merge(doubles, doubles).sum_exp.dtype == torch.float64


def test_merge_refuses_statistics_that_do_not_fit() -> None:
    row = identity([2])
    with pytest.raises(ShapeError, match=r"got \[2\], \[2\], \[3\], \[3\]; allowed: four equal shapes"):
        merge(row, identity([3]))
    with pytest.raises(DtypeError, match=r"torch\.float64, torch\.float64; allowed: one floating-point dtype"):
        merge(row, identity([2], dtype=torch.float64))
    with pytest.raises(DeviceError, match="cpu, cpu, meta, meta; allowed: one device"):
        merge(row, identity([2], device=torch.device("meta")))
    with pytest.raises(GradientError, match="gradients of merge: got max1 with requires_grad"):
        merge(MaxSum(row.max.clone().requires_grad_(), row.sum_exp), row)
    with pytest.raises(OperandTypeError, match="type of argument 1 of merge: got NoneType; allowed: MaxSum"):
        merge(row, None)  # type: ignore[arg-type]


def test_log_sum_exp_is_torchs() -> None:
    logits = torch.tensor([[0.0, 1.0], [-INF, -INF], [INF, 0.0], [5.0, -INF]])
    largest = torch.tensor([1.0, -INF, INF, 5.0])
    total = torch.tensor([1 + math.exp(-1), 0.0, 1.0, 1.0])
    torch.testing.assert_close(MaxSum(largest, total).log_sum_exp, torch.logsumexp(logits, 1))


def written(first: str, second: str) -> str:
    return f"({first}{second})"


def test_the_fold_chains_tiles_and_joins_segments_by_the_tree() -> None:
    letters = [[letter, letter.upper()] for letter in "abcdefghijklmnop"]
    assert fold(letters, written) == (
        "(((((aA)(bB))((cC)(dD)))(((eE)(fF))((gG)(hH))))((((iI)(jJ))((kK)(lL)))(((mM)(nN))((oO)(pP)))))"
    )
    assert fold([["a", "b", "c"]], written) == "((ab)c)"


def test_absent_leaves_are_skipped() -> None:
    assert fold_tree(["a", None, None, None, "e", "f"], written) == "(a(ef))"
    assert fold_tree([None, None, "c"], written) == "c"


@given(st.lists(st.one_of(st.none(), st.sampled_from("abcdef")), min_size=1, max_size=16).filter(any))
def test_leaves_beyond_the_end_count_as_absent(leaves: list[str | None]) -> None:
    padded = leaves + [None] * (16 - len(leaves))
    assert fold_tree(leaves, written) == fold_tree(padded, written)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_a_rank_exchanges_one_node_of_the_tree(ranks: int) -> None:
    leaves = list("abcdefghijklmnop")
    share = 16 // ranks
    nodes = [fold_tree(leaves[start : start + share], written) for start in range(0, 16, share)]
    assert fold_tree(nodes, written) == fold_tree(leaves, written)


def test_the_fold_holds_one_partial_at_a_time() -> None:
    alive = peak = 0

    class Partial:
        def __init__(self) -> None:
            nonlocal alive, peak
            alive += 1
            peak = max(peak, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    fold(((Partial() for _ in range(100)) for _ in range(2)), lambda first, _: first)
    assert peak <= 5  # the leaf of the segment before; the running partial, the next one, and the two being merged


@pytest.mark.parametrize("leaves", [[], [None], ["a"] * 17])
def test_a_fold_of_nothing_or_of_too_many_leaves_is_refused(leaves: list[str | None]) -> None:
    with pytest.raises(ShapeError, match="allowed: 1 to 16 leaves, at least one of them present"):
        fold_tree(leaves, written)


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_shards_whose_grids_nest_have_the_bits_of_the_whole(kernel: str, ranks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, head = torch.randn(5, 40, generator=generator), torch.randn(16384, 40, generator=generator)
    whole = linear_max_sum(x, head, kernel=kernel)
    # At 16384 columns the segments of a shard are again nodes of the whole's tree: 1024 columns, or 2 x 512.
    shards = [linear_max_sum(x, shard, kernel=kernel) for shard in head.chunk(ranks)]
    assert same(fold_tree(shards, merge), whole)


def test_without_native_merge_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extension, "module", None)
    row = MaxSum(torch.tensor([1.0]), torch.tensor([2.0]))
    assert same(merge(row, row), MaxSum(torch.tensor([1.0]), torch.tensor([4.0])))


def test_merge_on_a_device_is_that_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (MaxSum(torch.tensor([1.0]), torch.tensor([value])) for value in (2.0, 3.0))
    monkeypatch.setattr(_extension, "module", None)
    monkeypatch.setitem(merges_on, "cpu", lambda *_: second)  # there is no other device here
    assert same(merge(first, first), second)
    double = MaxSum(first.max.double(), first.sum_exp.double())
    assert merge(double, double).sum_exp.item() == 4.0  # such a kernel computes fp32
    assert "cuda" in merges_on


def test_merge_on_the_cpu_in_fp32_is_natives(needs_native: types.ModuleType) -> None:
    m1, s1, m2, s2 = torch.rand(4, 100, generator=torch.Generator().manual_seed(1)) + 1
    largest, total = torch.empty(100), torch.empty(100)
    needs_native.merge(m1, s1, m2, s2, largest, total)
    assert same(merge(MaxSum(m1, s1), MaxSum(m2, s2)), MaxSum(largest, total))


def test_an_error_survives_pickling_and_copying() -> None:
    error = ShapeError("rank of weight", "[3]", "[V, H]", "Do this.")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(twin) == str(error) == "rank of weight: got [3]; allowed: [V, H]. Do this."
