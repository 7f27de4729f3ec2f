"""protect: what a caller sees when results are right, wrong once, wrong again, or can't be made a second time."""

from __future__ import annotations

import copy
import functools
import gc
import os
import random
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadysum
from steadysum.errors import AccuracyError, OperandTypeError, OptionError, RangeError, UnknownKernelError
from steadysum.guard.attribution import RANDOM
from steadysum.guard.bundle import BundleStore, read_bundle
from steadysum.guard.checks.checksum import Checksum
from steadysum.guard.checks.finite import Finite
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.checks.redundant import Redundant
from steadysum.guard.checks.reference import Reference
from steadysum.guard.failure import Failure
from steadysum.guard.protection import GuardedFunction, protect
from steadysum.guard.sampling import Escalate
from steadysum.guard.tensors import as_rows, same_bits
from steadysum.kernels import registry
from steadysum.kernels.problem import Operands, Statistics
from steadysum.notices import Notice, listen


@dataclass(frozen=True)
class NoSpike:
    """Objects to rows that hold a number beyond 100: faults here are spikes of 1000."""

    name: str = "no_spike"

    def fits(self, made: Made) -> str | None:
        return None if isinstance(made.output, Tensor) else "not one tensor"

    def judge(self, made: Made) -> Finding:
        bad = (as_rows(made.output.detach().float()).abs() > 100).any(dim=1).nonzero().flatten()
        return Finding(self.name, len(bad) == 0, "a spike" if len(bad) else "", tuple(bad[:16].tolist()))


@dataclass(frozen=True)
class Never:
    """A wrong check: it objects to everything, in row 0."""

    name: str = "never"

    def fits(self, made: Made) -> str | None:  # noqa: ARG002
        return None

    def judge(self, made: Made) -> Finding:  # noqa: ARG002
        return Finding(self.name, False, "never good enough", (0,))


@dataclass
class Faulty:
    """A product that has a spike in row 2 in its first so many runs."""

    faults: int
    runs: int = 0

    def __post_init__(self) -> None:
        self.__name__ = "product"

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        self.runs += 1
        output = x @ w.T
        if self.runs > self.faults:
            return output
        spike = torch.zeros_like(output)
        spike[2, 1] = 1000.0
        return output + spike


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.T


@pytest.fixture
def x() -> Tensor:
    return torch.linspace(-1, 1, 20).reshape(5, 4)


@pytest.fixture
def w() -> Tensor:
    return torch.linspace(-1, 1, 24).reshape(6, 4)


@dataclass
class Heard:
    notices: list[Notice] = field(default_factory=list)

    def of(self, kind: str, label: str) -> list[str]:
        return [notice.labels[label] for notice in self.notices if notice.kind == kind]


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    with listen(heard.notices.append):
        yield heard


guard = functools.partial(protect, checks=[NoSpike()], bundles=None)


# Right results


def test_a_right_result_comes_through_with_its_graph(x: Tensor, w: Tensor, heard: Heard) -> None:
    w.requires_grad_()
    output = guard(product)(x, w)
    assert same_bits(output.detach(), product(x, w).detach())
    output.sum().backward()
    assert w.grad is not None
    assert heard.of("call", "outcome") == ["clean"]
    assert heard.of("check", "outcome") == ["passed"]


def test_it_is_a_decorator_and_keeps_name_and_documentation(x: Tensor, w: Tensor) -> None:
    @protect(checks=[NoSpike()], bundles=None)
    def scores(x: Tensor, w: Tensor) -> Tensor:
        """Of x and w."""
        return x @ w.T

    assert isinstance(scores, GuardedFunction)
    assert (scores.__name__, scores.__doc__) == ("scores", "Of x and w.")
    assert same_bits(scores(x, w), product(x, w))


def test_a_decorated_method_stays_a_method(x: Tensor) -> None:
    class Doubles:
        factor = 2.0

        @protect(checks=[NoSpike()], bundles=None)
        def double(self, x: Tensor) -> Tensor:
            return self.factor * x

    assert same_bits(Doubles().double(x), 2.0 * x)


def test_what_the_callable_raises_comes_through_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        guard(torch.mm)(torch.ones(2, 3), torch.ones(2, 3))


def test_a_call_that_no_check_fits_runs_and_is_mentioned_once(x: Tensor) -> None:
    pair = guard(lambda x: (x, x))
    with pytest.warns(RuntimeWarning, match="wasn't checked: no check fits the call"):
        pair(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair(x)


# A transient fault


def test_a_transient_fault_is_healed_to_the_bits_of_a_clean_run(x: Tensor, w: Tensor, heard: Heard) -> None:
    faulty = Faulty(faults=1)
    guarded = guard(faulty)
    assert same_bits(guarded(x, w), product(x, w))
    assert faulty.runs == 2
    assert heard.of("call", "outcome") == ["healed"]
    assert heard.of("anomaly", "attribution") == ["transient"]
    assert len(heard.of("retry", "operator")) == 1
    (healing,) = guarded.guard.healings
    assert (healing.outcome, healing.reruns, healing.fallback) == ("healed", 1, None)
    assert (healing.verdict.attribution, healing.verdict.rows) == ("transient", (2,))


def test_a_transient_fault_leaves_a_bundle_with_both_results(x: Tensor, w: Tensor, tmp_path: Path) -> None:
    protect(Faulty(faults=1), checks=[NoSpike()], bundles=tmp_path)(x, w)
    (path,) = tmp_path.glob("*product*")
    bundle = read_bundle(path)
    assert (bundle.attribution, bundle.right, bundle.settings["outcome"]) == ("transient", "rerun", "healed")
    assert same_bits(bundle.args, (x, w))
    assert float(bundle.outputs["deviating"].max()) > 900
    assert same_bits(bundle.outputs["rerun"], product(x, w))


def test_gradients_after_a_retry_are_those_of_a_clean_run(x: Tensor, w: Tensor) -> None:
    w.requires_grad_()
    guard(Faulty(faults=2))(x, w).square().sum().backward()
    healed, w.grad = w.grad, None
    product(x, w).square().sum().backward()
    assert same_bits(healed, w.grad)


def test_the_first_graph_is_dropped_before_the_rerun(x: Tensor, w: Tensor) -> None:
    graphs: list[weakref.ref[Any]] = []
    alive: list[int] = []

    class Holds(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.big = Held()
            graphs.append(weakref.ref(ctx.big))
            return faulty(x, w)

        @staticmethod
        def backward(ctx: Any, upstream: Tensor) -> Any:
            raise NotImplementedError

    class Held:
        pass

    def run(x: Tensor, w: Tensor) -> Tensor:
        gc.collect()
        alive.append(sum(graph() is not None for graph in graphs))
        return Holds.apply(x, w)  # type: ignore[no-any-return]

    faulty = Faulty(faults=2)
    output = guard(run)(x, w.requires_grad_())
    assert alive == [0, 0, 0]
    assert output.requires_grad


# A fault that stays


def test_a_persistent_fault_of_one_way_is_healed_by_the_fallback(x: Tensor, w: Tensor, heard: Heard) -> None:
    guarded = guard(Faulty(faults=99), fallback=product)
    with pytest.warns(RuntimeWarning, match="product stayed wrong, and its fallback product was right; its bits may"):
        output = guarded(x, w)
    assert same_bits(output, product(x, w))
    assert heard.of("anomaly", "attribution") == ["persistent"]
    assert heard.of("fallback", "to") == ["product"]
    assert heard.of("call", "outcome") == ["fallback"]
    assert len(heard.of("retry", "operator")) == 3
    (healing,) = guarded.guard.healings
    assert (healing.outcome, healing.fallback, healing.reruns) == ("fallback", "product", 3)


def test_a_wrong_check_is_the_applications_fault(x: Tensor, w: Tensor) -> None:
    with pytest.raises(AccuracyError) as caught:
        guard(product, checks=[Never()], fallback=lambda x, w: (w @ x.T).T)(x, w)
    assert caught.value.attribution == "application"
    assert str(caught.value) == (
        "accuracy check failed: product: got never: never good enough, rows 0 (application: reruns and the fallback "
        "agree with the first result, against the check); allowed: a result that passes its checks, at once or after a "
        "rerun. Look at the inputs and at the check: the operator gives the same on every way."
    )


def test_without_a_way_out_the_error_has_findings_attribution_and_bundle(x: Tensor, w: Tensor, tmp_path: Path) -> None:
    with pytest.raises(AccuracyError, match="rows 2") as caught:
        protect(Faulty(faults=99), checks=[NoSpike()], bundles=tmp_path, max_retries=2)(x, w)
    assert caught.value.attribution == "undecided"
    assert [finding.check for finding in caught.value.findings] == ["no_spike"]
    assert caught.value.bundle is not None
    assert read_bundle(caught.value.bundle).settings["reruns"] == 2


def test_on_failure_warn_returns_the_last_result_with_its_graph(x: Tensor, w: Tensor) -> None:
    guarded = guard(Faulty(faults=99), on_failure="warn")
    with pytest.warns(RuntimeWarning, match="accuracy check failed: product") as caught:
        output = guarded(x, w.requires_grad_())
    assert float(output.detach().max()) > 900
    assert output.requires_grad
    assert caught[0].filename == __file__


def test_on_failure_return_gives_back_the_last_result_without_a_word(x: Tensor, w: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(guard(Faulty(faults=99), on_failure="return")(x, w).max()) > 900


def test_on_failure_may_be_a_callable_that_decides(x: Tensor, w: Tensor) -> None:
    def decide(failure: Failure) -> Tensor:
        assert failure.verdict.rows == (2,)
        assert failure.args[0] is x
        output: Tensor = failure.output
        return output.clamp(-10, 10)

    assert float(guard(Faulty(faults=99), on_failure=decide)(x, w).max()) == 10


def test_a_fallback_that_fails_itself_is_mentioned_and_the_failure_is_raised(x: Tensor, w: Tensor) -> None:
    def broken(x: Tensor, w: Tensor) -> Tensor:
        raise ValueError("not today")

    guarded = guard(Faulty(faults=99), fallback=broken)
    with (
        pytest.warns(RuntimeWarning, match="fallback broken of product failed itself: ValueError"),
        pytest.raises(AccuracyError, match="reruns gave the same, and the fallback broken failed itself: ValueError"),
    ):
        guarded(x, w)


def test_an_error_in_a_rerun_comes_through_and_its_evidence_is_kept(x: Tensor, w: Tensor, tmp_path: Path) -> None:
    faulty = Faulty(faults=9)

    def dies(x: Tensor, w: Tensor) -> Tensor:
        if faulty.runs == 1:
            raise MemoryError("no more")
        return faulty(x, w)

    with pytest.raises(MemoryError, match="no more"):
        protect(dies, checks=[NoSpike()], bundles=tmp_path)(x, w)
    (path,) = tmp_path.glob("*dies*")
    bundle = read_bundle(path)
    assert bundle.attribution == "undecided"
    assert bundle.settings["reason"] == "a rerun gave no result: it raised MemoryError('no more')"


# Another kernel, another device


def test_a_persistent_fault_of_one_kernel_is_healed_by_another_one(
    x: Tensor, w: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = registry.get("eager")
    plain = broken.statistics

    def wrong(calls: Sequence[Operands]) -> list[Statistics]:
        results = plain(calls)
        for result in results:
            result.sum_exp[2] = 0.25  # a row's largest logit alone adds 1
        return results

    monkeypatch.setattr(broken, "statistics", wrong)
    expected = steadysum.linear_max_sum(x, w, kernel="reference")
    guarded = protect(functools.partial(steadysum.linear_max_sum, kernel="eager"), fallback="reference", bundles=None)
    with pytest.warns(RuntimeWarning, match="linear_max_sum stayed wrong, and its fallback reference was right"):
        output = guarded(x, w)
    assert same_bits(tuple(output), tuple(expected))
    assert guarded.guard.healings[-1].verdict[::2] == ("persistent", (2,))


def test_a_kernels_name_is_refused_for_callables_that_have_no_kernels() -> None:
    with pytest.raises(OptionError) as caught:
        guard(torch.mm, fallback="eager")
    assert str(caught.value) == (
        "fallback='eager': got mm, which has no choice of kernels; allowed: a kernel's name for functions and modules "
        "of steadysum alone. Pass a callable, or a device's name."
    )


def test_a_device_on_which_the_operands_are_already_is_no_other_way(x: Tensor, w: Tensor) -> None:
    guarded = guard(Faulty(faults=99), fallback="cpu")
    text = "the fallback cpu of product is no other way: its operands are on cpu"
    with pytest.warns(RuntimeWarning, match=text), pytest.raises(AccuracyError):
        guarded(x, w)


# Random numbers


def test_dropout_draws_the_same_stream_guarded_and_retried() -> None:
    class Layers(nn.Module):
        def __init__(self, faults: int) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.faults = faults

        def forward(self, x: Tensor) -> Tensor:
            self.faults -= 1
            noise = random.random()
            return self.drop(x) + noise + (1000 if self.faults >= 0 else 0)

    x = torch.ones(16, 4)
    streams = []
    for module in (Layers(0), guard(Layers(0)), guard(Layers(2))):
        torch.manual_seed(3)
        random.seed(3)
        streams.append([module(x) for _ in range(3)] + [torch.rand(3), random.random()])
    assert same_bits(streams[0], streams[1])
    assert same_bits(streams[0], streams[2])


def test_an_operator_whose_random_source_cannot_be_put_back_is_refused(x: Tensor) -> None:
    hidden = torch.Generator().manual_seed(5)
    runs = [0]

    def noisy(x: Tensor) -> Tensor:
        runs[0] += 1
        output = x + torch.randn(x.shape, generator=hidden)
        if runs[0] == 1:
            output[2, 1] += 1000
        return output

    guarded = guard(noisy)
    with pytest.raises(AccuracyError) as caught:
        guarded(x)
    assert caught.value.attribution == "undecided"
    assert RANDOM in str(caught.value)
    assert runs[0] == 3
    assert guarded.guard.healings[-1].verdict.reason == RANDOM


def test_a_result_that_differs_elsewhere_too_is_taken_when_another_rerun_confirms_it(x: Tensor, w: Tensor) -> None:
    runs = [0]

    def damaged(x: Tensor, w: Tensor) -> Tensor:
        runs[0] += 1
        output = x @ w.T
        return output if runs[0] > 1 else output + torch.tensor([[0.0], [1.0], [1000.0], [0.0], [0.0]])

    guarded = guard(damaged, max_retries=1)
    assert same_bits(guarded(x, w), product(x, w))
    assert runs[0] == 3
    assert guarded.guard.healings[-1].verdict.attribution == "transient"


@pytest.mark.parametrize(
    "other",
    [torch.zeros(5, 7), torch.zeros(5, 6).double(), None, (torch.zeros(5, 6),)],
    ids=["shape", "dtype", "none", "pair"],
)
def test_a_fallback_whose_result_is_of_another_kind_is_not_right(x: Tensor, w: Tensor, other: Any) -> None:
    guarded = guard(Faulty(faults=99), fallback=lambda x, w: other, max_retries=1)  # noqa: ARG005
    with pytest.raises(AccuracyError):
        guarded(x, w)
    assert guarded.guard.healings[-1].verdict.attribution == "undecided"


def test_a_rerun_that_the_check_cannot_judge_is_not_right(x: Tensor) -> None:
    @dataclass(frozen=True)
    class Picky(NoSpike):
        def fits(self, made: Made) -> str | None:
            return None if float(made.output.detach().max()) > 100 else "no large numbers"

    outputs = [torch.full((2, 2), 1000.0), torch.ones(2, 2), torch.ones(2, 2)]
    guarded = protect(lambda x: outputs.pop(0), checks=[Picky()], bundles=None, max_retries=2)  # noqa: ARG005
    with pytest.raises(AccuracyError):
        guarded(x)


# Writes


def test_an_operator_in_place_is_not_run_again(x: Tensor) -> None:
    runs = [0]

    def add_in_place(x: Tensor) -> Tensor:
        runs[0] += 1
        return x.add_(1000 if runs[0] == 1 else 1)

    with pytest.raises(AccuracyError) as caught:
        guard(add_in_place, fallback=torch.clone)(x)
    assert runs[0] == 1
    assert caught.value.attribution == "undecided"
    assert "it changed argument 0 in place; protect(..., restore=True) takes copies that a rerun starts from" in str(
        caught.value
    )


def test_an_operator_in_place_is_run_again_from_copies_where_that_is_asked_for(x: Tensor, tmp_path: Path) -> None:
    runs = [0]

    def add_in_place(x: Tensor) -> Tensor:
        runs[0] += 1
        return x.add_(1000 if runs[0] == 1 else 1)

    before = x.clone()
    guarded = protect(add_in_place, checks=[NoSpike()], restore=True, bundles=tmp_path)
    assert guarded(x) is x
    assert same_bits(x, before + 1)
    (path,) = tmp_path.glob("*add_in_place*")
    assert same_bits(read_bundle(path).args[0], before)


def test_the_first_result_of_an_operator_in_place_stays_as_it_was(x: Tensor, tmp_path: Path) -> None:
    runs = [0]

    def add_in_place(x: Tensor) -> Tensor:
        runs[0] += 1
        x.add_(1)
        if runs[0] == 1:
            x[2, 1] = 1000
        return x[:4]

    before = x.clone()
    guarded = protect(add_in_place, checks=[NoSpike()], restore=True, bundles=tmp_path)
    guarded(x)
    wrong = before[:4] + 1
    wrong[2, 1] = 1000
    (path,) = tmp_path.glob("*add_in_place*")
    outputs = read_bundle(path).outputs
    assert same_bits(outputs["deviating"], wrong)
    assert same_bits(outputs["rerun"], before[:4] + 1)
    assert guarded.guard.healings[-1].verdict.rows == (2,)


def test_runs_in_place_that_differ_from_each_other_are_not_the_same_for_lying_in_one_place(x: Tensor) -> None:
    runs = [0]

    def add_in_place(x: Tensor) -> Tensor:
        runs[0] += 1
        return x.add_(1000.0 * 10 ** runs[0])

    with pytest.raises(AccuracyError, match="reruns differ from each other"):
        guard(add_in_place, restore=True, max_retries=1)(x)


class Counts(nn.Module):
    """Writes to its buffer and, in an odd case, replaces it: then it can't be run again."""

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.replaces = replaces

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        if self.replaces:
            self.register_buffer("more", torch.ones(1))
        return x.add_(1000)


def test_the_bundle_of_a_refused_call_holds_its_inputs_as_they_were(x: Tensor, tmp_path: Path) -> None:
    before = x.clone()
    with pytest.raises(AccuracyError, match="was not run again"):
        protect(Counts(replaces=True), checks=[NoSpike()], restore=True, bundles=tmp_path)(x)
    (path,) = tmp_path.glob("*Counts*")
    bundle = read_bundle(path)
    assert same_bits(bundle.args[0], before)
    assert bundle.state is not None
    assert bundle.state["count"].tolist() == [0.0, 0.0]
    assert bundle.verdict["as_after"] == []


def test_a_bundle_says_which_inputs_are_as_the_call_has_left_them(x: Tensor, tmp_path: Path) -> None:
    with pytest.raises(AccuracyError, match="was not run again"):
        protect(Counts(replaces=False), checks=[NoSpike()], bundles=tmp_path)(x)
    (path,) = tmp_path.glob("*Counts*")
    assert read_bundle(path).verdict["as_after"] == ["argument 0", "buffer count"]


def breaks_in_place(x: Tensor) -> Tensor:
    return x.mul_(torch.inf).sub_(torch.inf)


def test_what_the_call_itself_has_broken_excuses_no_result(x: Tensor) -> None:
    for restore in (False, True):
        with pytest.raises(AccuracyError, match="NaN or infinities, in 5 of 5 rows"):
            protect(breaks_in_place, checks=[Finite()], bundles=None, restore=restore)(x.clone())


def test_what_was_broken_before_the_call_excuses_its_result_where_there_is_a_copy(x: Tensor) -> None:
    x[1, 1] = torch.nan
    guarded = protect(lambda x: x.nan_to_num_().mul_(0).div_(0), checks=[Finite()], bundles=None, restore=True)
    assert bool(guarded(x).isnan().all())


def test_checks_that_need_arguments_have_them_as_they_were_or_do_not_judge(x: Tensor, w: Tensor) -> None:
    def consume(x: Tensor, w: Tensor) -> Tensor:
        output = x @ w.T
        x.zero_()
        return output

    by_checksum = Checksum(operands=lambda made: (made.args[0], made.args[1], None))
    right = product(x, w)
    for check in (Reference(product), by_checksum, Redundant()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert same_bits(protect(consume, checks=[check], bundles=None, restore=True)(x.clone(), w), right)
        with pytest.warns(RuntimeWarning, match="wasn't checked"):
            assert same_bits(protect(consume, checks=[check], bundles=None)(x.clone(), w), right)

    def slips(x: Tensor, w: Tensor) -> Tensor:
        return consume(x, w) + 1

    for check in (Reference(product), by_checksum):
        with pytest.raises(AccuracyError):
            protect(slips, checks=[check], bundles=None, restore=True)(x.clone(), w)


def test_batch_norm_keeps_the_statistics_of_one_run() -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.faults = 0

        def forward(self, x: Tensor) -> Tensor:
            self.faults -= 1
            return self.norm(x) + (1000 if self.faults >= 0 else 0)  # type: ignore[no-any-return]

    data = torch.randn(8, 3)
    plain, module = Normalised(), Normalised()
    plain(data)
    module.faults = 1
    guard(module, restore=True)(data)
    assert same_bits(dict(plain.state_dict()), dict(module.state_dict()))
    module.faults = 1
    with pytest.raises(AccuracyError, match=r"it changed buffer norm.num_batches_tracked in place"):
        guard(module)(data)


# Sampling, escalation, options


def test_every_nth_call_is_checked(x: Tensor, w: Tensor, heard: Heard) -> None:
    guarded = guard(product, every=4)
    for _ in range(9):
        guarded(x, w)
    assert len(heard.of("check", "outcome")) == 3


def test_strong_checks_follow_repeated_strikes(x: Tensor, w: Tensor, heard: Heard) -> None:
    faulty = Faulty(faults=1)
    guarded = guard(faulty, escalate=Escalate([NoSpike("strong")], strikes=2, window=10))
    guarded(x, w)
    faulty.runs = 0
    with pytest.warns(RuntimeWarning, match="failed its checks 2 times within 10 calls: from here on"):
        guarded(x, w)
    heard.notices.clear()
    guarded(x, w)
    assert heard.of("check", "check") == ["no_spike", "strong"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"checks": NoSpike()}, OperandTypeError, "type of checks: got NoSpike; allowed: a list of checks, or None"),
        ({"checks": []}, OptionError, "checks: got none; allowed: one at least"),
        ({"checks": [NoSpike]}, OperandTypeError, "an object with name, fits and judge"),
        ({"checks": [lambda made: True]}, OperandTypeError, "Wrap a function of your own as guard.checks.Custom"),  # noqa: ARG005
        ({"max_retries": -1}, RangeError, "max_retries: got -1; allowed: at least 0"),
        ({"max_retries": True}, OperandTypeError, "type of max_retries: got bool; allowed: int"),
        ({"every": 0}, RangeError, "every: got 0; allowed: at least 1"),
        ({"on_failure": "ignore"}, RangeError, "on_failure: got 'ignore'; allowed: 'raise', 'warn', 'return' or"),
        ({"fallback": "nowhere"}, UnknownKernelError, "fallback: got 'nowhere'; allowed: a kernel ("),
        ({"fallback": 3}, OperandTypeError, "type of fallback: got int"),
        ({"bundles": 3}, OperandTypeError, "type of bundles: got int; allowed: a folder, a BundleStore or None"),
        ({"escalate": 3}, OperandTypeError, "type of escalate: got int"),
        ({"all_ranks_decide": 3}, OperandTypeError, "type of all_ranks_decide: got int"),
        ({"amp": "O1"}, RangeError, "amp: got 'O1'; allowed: 'O2' or None. For O1, call inside torch.autocast."),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_call(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        guard(product, **options)
    assert text in str(caught.value)


@pytest.mark.parametrize("target", [nn.Linear, 3, "mm"])
def test_targets_that_cannot_be_guarded_are_refused(target: Any) -> None:
    with pytest.raises(OperandTypeError, match="type of target"):
        guard(target)


def test_guards_are_not_nested_and_coroutines_not_guarded() -> None:
    async def later() -> None:
        return None

    with pytest.raises(OperandTypeError, match="a function that gives back its result later"):
        guard(later)
    with pytest.raises(OperandTypeError, match="something that is guarded already"):
        guard(guard(product))


# Modules


def test_a_guarded_module_has_the_same_keys_parameters_and_buffers() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    guarded = guard(module)
    assert guarded.guarded is module
    assert list(guarded.state_dict()) == list(module.state_dict())
    assert all(one is other for one, other in zip(guarded.parameters(), module.parameters(), strict=True))
    assert [name for name, _ in guarded.named_buffers()] == [name for name, _ in module.named_buffers()]
    assert guarded.get_submodule("0") is module[0]
    guarded.eval()
    assert not module[1].training
    guarded.to(torch.float64)
    assert module[0].weight.dtype == torch.float64
    guarded.load_state_dict({name: torch.ones_like(value) for name, value in module.state_dict().items()})
    assert float(module[0].weight[0, 0]) == 1.0


def test_a_guarded_module_in_a_model_keeps_the_models_keys_and_takes_its_checkpoints() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model = nn.Sequential(guard(nn.Linear(3, 4)), guard(nn.Linear(4, 2)))
    assert list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict())
    x = torch.randn(5, 3)
    assert same_bits(model(x), plain(x))


def test_a_copy_of_a_guarded_module_is_guarded_and_has_parameters_of_its_own() -> None:
    guarded = guard(nn.Sequential(nn.Linear(3, 4)))
    twin = copy.deepcopy(guarded)
    assert twin.guarded is not guarded.guarded
    assert next(twin.parameters()) is next(twin.guarded.parameters())  # type: ignore[union-attr]
    assert next(twin.parameters()) is not next(guarded.parameters())
    x = torch.randn(2, 3)
    assert same_bits(twin(x), guarded(x))
    assert twin.guard is not guarded.guard


def test_hooks_of_a_guarded_module_run_and_what_they_break_is_caught() -> None:
    module = nn.Linear(3, 4)
    guarded = guard(module, max_retries=1)
    module.register_forward_hook(lambda module, args, output: output + 1000)  # noqa: ARG005
    with pytest.raises(AccuracyError, match="no_spike: a spike"):
        guarded(torch.ones(2, 3))


# Surroundings


def test_reruns_are_under_the_same_autocast(x: Tensor, w: Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = guard(Faulty(faults=1))(x, w)
        expected = product(x, w)
        assert output.dtype == torch.bfloat16
    assert same_bits(output, expected)


def test_autocasts_cache_does_not_keep_the_first_graph_in_the_rerun(x: Tensor) -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 6)
            self.faults = 1

        def forward(self, x: Tensor) -> Tensor:
            self.faults -= 1
            return self.linear(x) + (1000 if self.faults >= 0 else 0)  # type: ignore[no-any-return]

    head = Head()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guard(head)(x).float().square().sum().backward()
    healed, head.linear.weight.grad = head.linear.weight.grad, None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        head(x).float().square().sum().backward()
    assert same_bits(healed, head.linear.weight.grad)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_faults_are_healed_without_gradients_too(x: Tensor, w: Tensor, mode: Callable[[], Any]) -> None:
    with mode():
        assert same_bits(guard(Faulty(faults=1))(x, w), product(x, w))


def test_what_cannot_be_looked_at_is_not_checked_and_says_so(x: Tensor, w: Tensor) -> None:
    guarded = guard(product)
    with pytest.warns(RuntimeWarning, match="wasn't checked: it runs under a transform"):
        torch.func.vmap(lambda row: guarded(row[None], w))(x)


def test_guarded_callables_inside_of_a_guarded_callable_are_both_guarded(x: Tensor, w: Tensor, heard: Heard) -> None:
    inner = guard(Faulty(faults=1), operator="inner")
    outer = guard(lambda x, w: inner(x, w) * 2, operator="outer")
    assert same_bits(outer(x, w), product(x, w) * 2)
    assert heard.of("call", "operator") == ["inner", "outer"]


def test_a_thousand_failures_leave_no_more_bundles_than_configured(
    x: Tensor, w: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # noqa: ARG005 - a thousand of them take a minute
    store = BundleStore(tmp_path, most=4, most_bytes=4 << 20)
    guarded = protect(Faulty(faults=10**9), checks=[NoSpike()], max_retries=0, on_failure="return", bundles=store)
    for _ in range(1000):
        guarded(x, w)
    bundles = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert 1 <= len(bundles) <= 4
    assert sum(file.stat().st_size for path in bundles for file in path.iterdir()) <= 4 << 20


def test_a_folder_that_cannot_be_written_warns_once_is_counted_and_stops_nothing(
    x: Tensor, w: Tensor, tmp_path: Path, heard: Heard
) -> None:
    (tmp_path / "file").write_text("in the way")
    faulty = Faulty(faults=1)
    guarded = protect(faulty, checks=[NoSpike()], bundles=tmp_path / "file" / "bundles")
    with pytest.warns(RuntimeWarning, match="a bundle could not be written to") as caught:
        assert same_bits(guarded(x, w), product(x, w))
    assert [warning.filename for warning in caught] == [__file__]  # the caller's line, not one of the guard's
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        faulty.runs = 0
        assert same_bits(guarded(x, w), product(x, w))
    assert heard.of("bundle", "outcome") == ["failed", "failed"]


def test_a_call_that_consumes_an_iterator_is_not_run_again() -> None:
    calls = []

    def total(values: Any) -> Tensor:
        calls.append(1)
        found = torch.tensor([float(value) for value in values]).sum()
        return found if len(calls) > 1 else found * torch.nan

    guarded = protect(total, checks=[Finite()], bundles=None)
    with pytest.raises(AccuracyError, match="holds an iterator, which a run consumes"):
        guarded(iter([1, 2]))
    assert len(calls) == 1
