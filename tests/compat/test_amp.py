"""contrib.amp: O1 is autocast; O2 stores bf16, keeps fp32 masters, and steps as the definition does, bit for bit."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadysum.compat.torch_npu.contrib import amp, masters
from steadysum.errors import DtypeError, OperandTypeError, OptionError, PatchError, RangeError, ShapeError

HALF = torch.bfloat16


class Net(nn.Module):
    """With what mixed precision stumbles over: an embedding, a fp32 buffer that is added, norms, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.register_buffer("places", torch.linspace(0, 1, 16))
        self.norm = nn.LayerNorm(16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embedding.weight
        self.seen: list[torch.dtype] = []

    def forward(self, ids: Tensor, shift: float = 0.0) -> dict[str, Tensor]:
        x = self.inner(self.norm(self.embedding(ids) + self.places + shift))
        self.seen.append(x.dtype)
        return {"logits": self.head(F.gelu(x))}


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


IDS = torch.arange(24).reshape(2, 12)


def loss_of(model: nn.Module, ids: Tensor = IDS) -> Tensor:
    logits = model(ids)["logits"]
    assert logits.dtype == torch.float32
    return F.cross_entropy(logits.flatten(0, 1), (ids + 1).flatten())


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
    "foreach Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, foreach=True, amsgrad=True),
}


# ---- O1 ----------------------------------------------------------------------------------------------------------


def test_o1_is_autocast() -> None:
    plain, model = net(), net()
    model, _ = amp.initialize(model, torch.optim.SGD(model.parameters()), opt_level="O1")
    with torch.autocast("cpu", dtype=HALF):
        expected = plain(IDS)["logits"]
    assert torch.equal(model(IDS)["logits"], expected.float())
    assert model.seen == [HALF]
    assert {each.dtype for each in model.parameters()} == {torch.float32}


# ---- O2 ----------------------------------------------------------------------------------------------------------


def test_o2_stores_bf16_but_for_norms_and_buffers_and_its_optimizer_fp32() -> None:
    model = net()
    before = {name: each.clone() for name, each in model.named_parameters()}
    model, optimizer = amp.initialize(model, torch.optim.AdamW(model.parameters()), opt_level="O2")
    for name, each in model.named_parameters():
        assert each.dtype == (torch.float32 if name.startswith("norm") else HALF)
        assert torch.equal(each, before[name].to(each.dtype))
    assert model.head.weight is model.embedding.weight
    assert model.places.dtype == torch.float32
    kept = optimizer.param_groups[0]["params"]
    assert all(torch.equal(one, other) for one, other in zip(kept, before.values(), strict=True))
    loss_of(model).backward()
    optimizer.step()
    assert model.seen == [HALF]
    assert {each.dtype for state in optimizer.state.values() for each in state.values()} == {torch.float32}


class ByDefinition:
    """O2 written down: fp32 masters, rounded for each forward, gradients widened."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        self.model = net()
        self.masters = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        self.optimizer = make([nn.Parameter(each) for each in self.masters.values()])

    def step(self, batches: list[Tensor]) -> None:
        names, kept = list(self.masters), self.optimizer.param_groups[0]["params"]
        for each in kept:
            each.grad = None
        for ids in batches:
            used = {
                name: each.detach().to(torch.float32 if name.startswith("norm") else HALF).requires_grad_()
                for name, each in zip(names, kept, strict=True)
            }
            used["head.weight"] = used["embedding.weight"].detach().clone().requires_grad_()  # tied: its own gradient
            with torch.autocast("cpu", dtype=HALF):
                found = torch.func.functional_call(self.model, used, (ids,), tie_weights=False)["logits"]
            loss = F.cross_entropy(found.float().flatten(0, 1), (ids + 1).flatten())
            wide = {
                name: each.float()
                for name, each in zip(used, torch.autograd.grad(loss, list(used.values())), strict=True)
            }
            wide["embedding.weight"] += wide.pop("head.weight")
            for each, gradient in zip(kept, wide.values(), strict=True):
                each.grad = gradient if each.grad is None else each.grad + gradient
        self.optimizer.step()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_o2_trains_as_its_definition_bit_for_bit_also_over_several_backward_passes(
    make: Callable[[Any], torch.optim.Optimizer],
) -> None:
    model = net()
    model, optimizer = amp.initialize(model, make(model.parameters()), opt_level="O2")
    expected = ByDefinition(make)
    for number in range(5):
        batches = [(IDS + number) % 29, (IDS * 3 + number) % 29]
        for ids in batches:
            with amp.scale_loss(loss_of(model, ids), optimizer) as scaled:
                scaled.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.step(batches)
        found = optimizer.param_groups[0]["params"]
        wanted = expected.optimizer.param_groups[0]["params"]
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_steps_too_small_for_bf16_add_up_in_the_master() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    _, optimizer = amp.initialize(layer, torch.optim.SGD(layer.parameters(), lr=2.0**-12), opt_level="O2")
    for _ in range(64):  # each step is 2^-12; bf16 has 2^-8 below 1, and would stay where it is
        layer(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.param_groups[0]["params"][0].item() == 1.0 - 2.0**-6
    assert layer.weight.item() == 1.0 - 2.0**-6


@pytest.fixture
def trained() -> tuple[Net, torch.optim.Optimizer]:
    model = net()
    model, optimizer = amp.initialize(model, OPTIMIZERS["AdamW"](model.parameters()), opt_level="O2")
    loss_of(model).backward()
    return model, optimizer


def test_gradients_are_cleared_by_the_optimizer_and_by_the_model(trained: tuple[Net, torch.optim.Optimizer]) -> None:
    model, optimizer = trained
    optimizer.zero_grad(set_to_none=False)
    assert all(bool((each.grad == 0).all()) for each in model.parameters() if each.grad is not None)
    loss_of(model).backward()
    optimizer.zero_grad()
    assert all(each.grad is None for each in model.parameters())
    loss_of(model).backward()
    optimizer.step()
    model.zero_grad()
    before = [each.clone() for each in optimizer.param_groups[0]["params"]]
    optimizer.step()  # there is nothing to step on
    assert all(torch.equal(one, two) for one, two in zip(before, optimizer.param_groups[0]["params"], strict=True))


@pytest.mark.parametrize("clipped", ["model", "master_params"])
def test_gradients_clipped_by_either_name_are_those_of_the_step(
    trained: tuple[Net, torch.optim.Optimizer], clipped: str
) -> None:
    model, optimizer = trained
    parameters = model.parameters() if clipped == "model" else amp.master_params(optimizer)
    nn.utils.clip_grad_norm_(parameters, 1e-3)
    optimizer.step()
    norms = [each.grad.norm() for each in optimizer.param_groups[0]["params"]]
    assert torch.stack(norms).norm().item() == pytest.approx(1e-3, rel=2e-3)


def test_a_weight_changed_from_outside_is_taken_over(trained: tuple[Net, torch.optim.Optimizer]) -> None:
    model, optimizer = trained
    state = {name: each.clone() for name, each in model.state_dict().items()}
    state["inner.weight"][3, 5] = 7.0
    low_bits = optimizer.param_groups[0]["params"][3].detach().clone()
    model.load_state_dict(state)
    optimizer.zero_grad()
    optimizer.step()
    found = optimizer.param_groups[0]["params"][3].detach()
    low_bits[3, 5] = 7.0
    assert torch.equal(found, low_bits)  # one element is new, the others keep the bits that bf16 hasn't


def test_a_closure_computes_with_stored_weights_and_the_optimizer_steps_on_masters() -> None:
    torch.manual_seed(0)
    layer, x, y = nn.Linear(8, 1), torch.randn(64, 8), torch.randn(64, 1)
    _, optimizer = amp.initialize(layer, torch.optim.LBFGS(layer.parameters(), max_iter=8), opt_level="O2")
    losses = []

    def closure() -> Tensor:
        assert layer.weight.dtype == HALF
        optimizer.zero_grad()
        loss = F.mse_loss(layer(x), y)
        loss.backward()
        losses.append(loss.item())
        return loss

    optimizer.step(closure)
    optimizer.step(closure=closure)
    exact = torch.linalg.lstsq(torch.cat([x, torch.ones(64, 1)], 1), y).solution
    least = F.mse_loss(torch.cat([x, torch.ones(64, 1)], 1) @ exact, y).item()
    # Weights and products rounded to 2^-9 of their size leave the loss that far from the least, and no farther.
    assert losses[0] > 1.05 * least
    assert min(losses) == pytest.approx(least, rel=2.0**-6)
    assert torch.equal(layer.weight, optimizer.param_groups[0]["params"][0].to(HALF))


def test_a_run_that_is_saved_and_resumed_has_the_bits_of_one_that_went_on(tmp_path: Path) -> None:
    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
        for number in range(count):
            loss_of(model, (IDS + number) % 29).backward()
            optimizer.step()
            optimizer.zero_grad()

    model = net()
    model, optimizer = amp.initialize(model, OPTIMIZERS["AdamW"](model.parameters()), opt_level="O2")
    steps(model, optimizer, 3)
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "run.pt")
    steps(model, optimizer, 3)

    again = net(seed=9)
    again, resumed = amp.initialize(again, OPTIMIZERS["AdamW"](again.parameters()), opt_level="O2")
    weights, state = torch.load(tmp_path / "run.pt")
    again.load_state_dict(weights)
    resumed.load_state_dict(state)
    steps(again, resumed, 3)
    for one, other in zip(optimizer.param_groups[0]["params"], resumed.param_groups[0]["params"], strict=True):
        assert torch.equal(one, other)
    del state["master_weights"]  # as of a run in fp32
    resumed.load_state_dict(state)
    steps(again, resumed, 1)
    state["master_weights"] = [torch.zeros(3)]
    with pytest.raises(ShapeError, match=r"master_weights of an optimizer's state: got \[\[3\]\]; allowed: \[\[30, 16"):
        resumed.load_state_dict(state)


def test_where_gradients_cannot_be_fp32_they_are_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "widen_gradient", lambda _: None)  # as in a torch without grad_dtype
    model = net()
    model, optimizer = amp.initialize(model, OPTIMIZERS["AdamW"](model.parameters()), opt_level="O2")
    first = loss_of(model)
    for _ in range(20):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss_of(model) < first


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_o2_trains_under_distributed_data_parallel(group: None) -> None:
    model = net()
    model, optimizer = amp.initialize(model, OPTIMIZERS["SGD"](model.parameters()), opt_level="O2")
    wrapped = nn.parallel.DistributedDataParallel(model)
    first = loss_of(wrapped)
    for _ in range(20):
        optimizer.zero_grad()
        loss_of(wrapped).backward()
        assert model.inner.weight.grad is not None
        assert model.inner.weight.grad.dtype == HALF
        optimizer.step()
    assert loss_of(wrapped) < first


def test_without_an_optimizer_a_model_is_stored_for_inference() -> None:
    model = amp.initialize(net(), opt_level="O2").eval()
    assert isinstance(model, Net)
    assert model.inner.weight.dtype == HALF
    with torch.no_grad():
        found, exact = model(IDS)["logits"], net()(IDS)["logits"]
    assert found.dtype == torch.float32
    assert F.cosine_similarity(found, exact, dim=-1).min() > 0.999


def test_a_copied_model_computes_with_its_own_weights_and_shows_its_own_parameters(
    trained: tuple[Net, torch.optim.Optimizer],
) -> None:
    model, _ = trained
    copied = copy.deepcopy(model)
    expected = model(IDS)["logits"].detach().clone()
    with torch.no_grad():
        model.embedding.weight.zero_()
    assert torch.equal(copied(IDS)["logits"], expected)
    assert list(inspect.signature(model.forward).parameters) == ["ids", "shift"]


def test_the_rest_of_the_optimizers_parameters_stay_as_they_are() -> None:
    model, other = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*model.parameters(), other], lr=0.5)
    amp.initialize(model, optimizer, opt_level="O2")
    (model(torch.ones(1, 2)).sum() + other.sum()).backward()
    optimizer.step()
    assert other.tolist() == [0.5, 0.5]
    assert other in set(amp.master_params(optimizer))


def test_mistakes_are_told() -> None:
    model = net()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    with pytest.raises(RangeError, match=r"opt_level: got 'O3'; allowed: 'O1', 'O2'\. For fp32, leave initialize out"):
        amp.initialize(model, optimizer, opt_level="O3")  # type: ignore[call-overload]
    with pytest.raises(OperandTypeError, match=r"type of model: got list; allowed: torch\.nn\.Module"):
        amp.initialize([model], optimizer)  # type: ignore[call-overload]
    with pytest.raises(
        OperandTypeError, match=r"type of optimizer: got list; allowed: torch\.optim\.Optimizer or None"
    ):
        amp.initialize(model, [optimizer])  # type: ignore[call-overload]
    with pytest.raises(DtypeError, match=r"dtype of model: got torch\.bfloat16; allowed: fp32 parameters"):
        amp.initialize(net().bfloat16(), None)
    with pytest.raises(OptionError, match=r"model: got DataParallel; allowed: the model inside"):
        amp.initialize(nn.DataParallel(model), None)
    amp.initialize(model, optimizer, opt_level="O2")
    with pytest.raises(PatchError, match=r"amp\.initialize: got a second call"):
        amp.initialize(model, None)
    with pytest.raises(PatchError, match=r"amp\.initialize: got a second call"):
        amp.initialize(net(), optimizer, opt_level="O2")
