"""Checks that run something: the call once more, another implementation, or a test of the user's own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadysum import linear_max_sum
from steadysum.errors import OperandTypeError
from steadysum.guard.checks.custom import Custom
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.checks.redundant import Redundant
from steadysum.guard.checks.reference import Reference

X = torch.arange(8.0).reshape(4, 2)


def states() -> list[Any]:
    """All global random states."""
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index, union-attr]


class TestRedundant:
    """The call once more."""

    def test_equal_bits_pass_and_one_bit_does_not(self) -> None:
        output = X.exp()
        assert Redundant().judge(Made(torch.exp, (X,), {}, output)).passed
        output[2, 1] = torch.nextafter(output[2, 1], torch.tensor(torch.inf))
        finding = Redundant().judge(Made(torch.exp, (X,), {}, output))
        assert finding.rows == (2,)
        assert finding.summary == "a second run gives other bits, in rows 2"

    def test_a_tolerance_lets_rounding_pass(self) -> None:
        output = X.exp()
        output[2, 1] *= 1.01
        assert Redundant(rtol=0.02).judge(Made(torch.exp, (X,), {}, output)).passed
        finding = Redundant(rtol=0.001).judge(Made(torch.exp, (X,), {}, output))
        assert finding.places == ((2, 1),)
        assert finding.measured == pytest.approx(0.01 * float(X[2, 1].exp()), rel=1e-3)

    def test_random_callables_are_not_compared_and_states_are_put_back(self) -> None:
        def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
            return x + random.random() + np.random.rand() + torch.rand(()) + torch.rand((), generator=generator)

        generator = torch.Generator().manual_seed(3)
        output = noisy(X, generator)
        before = [*states(), generator.get_state().tolist()]
        finding = Redundant().judge(Made(noisy, (X, generator), {}, output))
        assert finding.passed
        assert finding.summary == "not compared: the callable draws random numbers"
        assert [*states(), generator.get_state().tolist()] == before

    def test_states_are_put_back_after_an_error(self) -> None:
        def fails(x: Tensor) -> Tensor:
            torch.rand(())
            raise ValueError("no second run")

        before = states()
        with pytest.raises(ValueError, match="no second run"):
            Redundant().judge(Made(fails, (X,), {}, X))
        assert states() == before

    def test_dropout_behaves_as_without_the_check(self) -> None:
        layer = nn.Sequential(nn.Linear(2, 3), nn.Dropout())
        torch.manual_seed(0)
        output, then = layer(X), torch.rand(2)
        torch.manual_seed(0)
        output = layer(X)
        assert Redundant().judge(Made(layer, (X,), {}, output)).passed
        assert torch.equal(torch.rand(2), then)

    def test_callables_that_a_second_run_would_change_do_not_fit(self) -> None:
        x = torch.ones(2)
        assert "one of its arguments" in str(Redundant().fits(Made(Tensor.add_, (x, 1), {}, x)))
        norm = nn.BatchNorm1d(2)
        assert "buffers" in str(Redundant().fits(Made(norm, (X,), {}, X.clone())))
        assert Redundant().fits(Made(norm.eval(), (X,), {}, X.clone())) is None

    def test_the_graph_of_the_result_stays_as_it_is(self) -> None:
        x = X.clone().requires_grad_()
        output = x.exp()
        node = output.grad_fn
        assert Redundant().judge(Made(torch.exp, (x,), {}, output)).passed
        assert output.grad_fn is node
        output.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, X.exp())


class TestReference:
    """Another implementation."""

    def test_statistics_are_compared_field_by_field(self) -> None:
        w = torch.eye(2)

        def plain(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            logits = input.double() @ weight.double().T
            most = logits.amax(1)
            return most, (logits - most[:, None]).exp().sum(1)

        output = linear_max_sum(X, w)
        check = Reference(plain, rtol=1e-5)
        assert check.judge(Made(linear_max_sum, (X, w), {}, output)).passed
        finding = check.judge(Made(linear_max_sum, (X, w), {}, output._replace(sum_exp=output.sum_exp * 1.001)))
        assert finding.rows == (0, 1, 2, 3)
        assert finding.summary.startswith("4 of 4 elements of sum_exp are off, in 4 rows; the worst, at [")

    def test_other_shapes_and_places_are_differences(self) -> None:
        assert (
            "has the shape [4, 2], and should have [2]"
            in Reference(lambda x: x[0]).judge(Made(abs, (X,), {}, X)).summary
        )
        finding = Reference(lambda x: (x, x)).judge(Made(abs, (X,), {}, X))
        assert not finding.passed
        assert finding.summary == "the output and what it should be hold different tensors: value and 0, 1"

    def test_a_wrong_complex_number_is_at_its_own_column(self) -> None:
        expected = torch.zeros(2, 2, dtype=torch.complex64)
        output = expected.clone()
        output[1, 1] = 1j
        finding = Reference(lambda: expected).judge(Made(abs, (), {}, output))
        assert finding.places == ((1, 1),)

    def test_a_reference_that_draws_leaves_random_states_alone(self) -> None:
        before = states()
        Reference(lambda x: x + random.random() + torch.rand(())).judge(Made(abs, (X,), {}, X))
        assert states() == before


class TestCustom:
    """The user's own test."""

    @pytest.mark.parametrize(
        ("said", "passed", "summary"),
        [
            (True, True, ""),
            (False, False, "the test says no"),
            ("", True, ""),
            ("row 3 is stale", False, "row 3 is stale"),
        ],
    )
    def test_what_it_says_is_the_finding(self, said: bool | str, passed: bool, summary: str) -> None:
        finding = Custom(lambda _: said, "mine").judge(Made(abs, (), {}, X))
        assert finding == Finding("mine", passed, summary)

    def test_a_finding_keeps_its_rows_under_the_checks_name(self) -> None:
        finding = Custom(lambda _: Finding("other", passed=False, rows=(1,)), "mine").judge(Made(abs, (), {}, X))
        assert finding == Finding("mine", passed=False, rows=(1,))

    def test_it_sees_the_call(self) -> None:
        check = Custom(lambda made: made.function is F.relu and torch.equal(made.output, F.relu(made.args[0])))
        assert check.judge(Made(F.relu, (X,), {}, F.relu(X))).passed

    def test_a_tensor_is_no_verdict(self) -> None:
        check = Custom(lambda made: (made.output > 0).all())  # type: ignore[arg-type, return-value]
        with pytest.raises(
            OperandTypeError, match=r"gave back: got Tensor; allowed: bool, str or Finding\. Return bool"
        ):
            check.judge(Made(abs, (), {}, X))
