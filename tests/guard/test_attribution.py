"""Attribution: from what the runs gave to whose fault it was; and when two results are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from steadysum.guard.attribution import RANDOM, Result, agree, agree_where_right, attribute
from steadysum.guard.checks.protocol import Finding

RIGHT = torch.arange(32.0).reshape(8, 4)


def wrong(row: int, by: float = 1.0) -> Tensor:
    output = RIGHT.clone()
    output[row, 1] += by
    return output


def passed(output: Any = RIGHT) -> Result:
    return Result(output, ())


def objected(output: Any, *rows: int) -> Result:
    return Result(output, (Finding("oracle", False, "wrong", rows),))


def test_a_rerun_that_is_right_makes_a_fault_transient_and_its_rows_are_named() -> None:
    verdict = attribute(objected(wrong(3), 3), [passed()], None, None)
    assert (verdict.attribution, verdict.rows) == ("transient", (3,))


def test_rows_that_no_check_names_are_found_by_comparing_with_the_right_result() -> None:
    assert attribute(objected(wrong(5)), [passed()], None, None).rows == (5,)
    assert attribute(objected(wrong(5)), [objected(wrong(5))], passed(), None).rows == (5,)


def test_wrong_reruns_and_a_right_fallback_make_a_fault_persistent() -> None:
    verdict = attribute(objected(wrong(3), 3), [objected(wrong(3), 3)] * 3, passed(), None)
    assert (verdict.attribution, verdict.rows) == ("persistent", (3,))


def test_a_persistent_fault_may_damage_the_same_rows_by_different_amounts() -> None:
    reruns = [objected(wrong(3, by=float(size)), 3) for size in (2, 3, 4)]
    assert attribute(objected(wrong(3), 3), reruns, passed(), None).attribution == "persistent"


def test_if_all_agree_against_the_check_it_is_the_application() -> None:
    other_order = RIGHT * (1 + 2 * torch.finfo(torch.float32).eps)
    verdict = attribute(objected(RIGHT, 3), [objected(RIGHT, 3)] * 3, objected(other_order, 3), None)
    assert verdict.attribution == "application"


def test_without_a_fallback_what_stays_wrong_is_undecided() -> None:
    verdict = attribute(objected(wrong(3), 3), [objected(wrong(3), 3)] * 3, None, None)
    assert verdict.attribution == "undecided"
    assert verdict.reason == "reruns gave the same, and there is no fallback to compare with"


def test_a_refusal_and_no_retries_are_undecided_with_their_reason() -> None:
    refused = attribute(objected(wrong(3), 3), [], None, "it changed argument 0 in place")
    assert (refused.attribution, refused.rows) == ("undecided", (3,))
    assert refused.reason == "it was not run again: it changed argument 0 in place"
    assert attribute(objected(wrong(3)), [], None, None).reason == "it was not run again: max_retries is 0"


def test_a_rerun_that_gave_no_result_is_said_also_after_one_that_passed() -> None:
    for reruns in ([], [passed(wrong(1))]):
        verdict = attribute(objected(wrong(3), 3), reruns, None, None, "it raised MemoryError()")
        assert (verdict.attribution, verdict.rows) == ("undecided", (3,))
        assert verdict.reason == "a rerun gave no result: it raised MemoryError()"


def test_runs_that_differ_in_rows_without_objection_are_random_not_a_fault() -> None:
    results = [objected(wrong(3) + noise, 3) for noise in (0.0, 1.0, 2.0)]
    verdict = attribute(results[0], results[1:], passed(), None)
    assert (verdict.attribution, verdict.reason) == ("undecided", RANDOM)


def test_a_rerun_that_passed_by_luck_is_not_called_transient() -> None:
    verdict = attribute(objected(wrong(3), 3), [passed(RIGHT + 1), passed(RIGHT + 2)], None, RANDOM)
    assert (verdict.attribution, verdict.reason) == ("undecided", RANDOM)


def test_reruns_and_fallback_that_are_wrong_in_different_ways_are_undecided() -> None:
    verdict = attribute(objected(wrong(3), 3), [objected(wrong(3), 3)], objected(wrong(4), 4), None)
    assert verdict.attribution == "undecided"
    assert verdict.reason == "reruns and the fallback were wrong too, and differ from each other"


def test_a_result_that_was_right_here_and_wrong_on_another_rank_says_so() -> None:
    verdict = attribute(passed(), [passed()], None, None)
    assert (verdict.attribution, verdict.reason) == ("undecided", "it was right here, and wrong on another rank")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_results_agree_up_to_the_root_of_eps_of_the_largest_value(dtype: torch.dtype) -> None:
    root = torch.finfo(dtype).eps ** 0.5
    one = torch.tensor([1.0, 4.0, torch.inf, torch.nan], dtype=dtype)
    assert agree(one, one + torch.tensor([2 * root, 0, 0, 0], dtype=dtype))
    assert not agree(one, one + torch.tensor([8 * root, 0, 0, 0], dtype=dtype))
    assert not agree(one, torch.tensor([1.0, 4.0, 1.0, torch.nan], dtype=dtype))


def test_integers_and_plain_values_agree_only_where_they_are_equal() -> None:
    assert agree((torch.tensor([1, 2]), 3), (torch.tensor([1, 2]), 3))
    assert not agree(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert agree(3, 3)
    assert not agree(3, 4)


def test_agreement_outside_of_the_rows_at_fault_needs_to_know_those_rows() -> None:
    assert agree_where_right(objected(wrong(3), 3), passed())
    assert not agree_where_right(objected(wrong(4), 3), passed())
    assert not agree_where_right(objected(wrong(3)), passed())
    assert not agree_where_right(objected(torch.zeros(64, 4), *range(16)), passed(torch.zeros(64, 4)))


def test_where_every_row_was_objected_to_nothing_can_agree() -> None:
    assert agree_where_right(objected(wrong(3), 3), passed())
    assert not agree_where_right(objected(torch.ones(1, 4), 0), passed(torch.zeros(1, 4)))
    assert not agree_where_right(objected(torch.ones(4)[0], 0), passed(torch.zeros(())))
