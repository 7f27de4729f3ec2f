"""protect_model: the same bits, every fault in a guarded layer caught, and a model that is itself again afterwards."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadysum.errors import AccuracyError, OperandTypeError, OptionError
from steadysum.guard.model_protection import ProtectedModel, protect_model
from steadysum.guard.protection import protect
from steadysum.guard.tensors import same_bits

transformers = pytest.importorskip(
    "transformers", reason="transformers is missing: pip install 'steadysum[transformers]'"
)


def guards_of(model: nn.Module, **options: Any) -> ProtectedModel:
    return protect_model(model, **{"bundles": None, **options})


def llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attention_dropout=0.1,
    )
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


MODELS = {"llama": llama, "gpt2": gpt2}


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest) -> nn.Module:
    return MODELS[request.param]()


@pytest.fixture
def tokens() -> Tensor:
    return torch.arange(24).reshape(2, 12) * 7 % 96


def step(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """Logits, loss, every gradient, and the random state afterwards, of one training step."""
    torch.manual_seed(1)
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    found = [output.logits, output.loss, *(each.grad for each in model.parameters()), torch.get_rng_state()]
    model.zero_grad(set_to_none=True)
    return [each.detach() for each in found]


def guarded_names(model: nn.Module) -> list[str]:
    kinds = ("Linear", "Embedding", "Conv1D")
    return [name for name, module in model.named_modules() if type(module).__name__ in kinds]


def everything_of(model: nn.Module) -> list[Any]:
    """What undo must leave as it was: identities of modules, classes, parameters, attributes and hooks."""
    found: list[Any] = []
    for name, module in model.named_modules():
        found += [name, id(module), type(module), {key: id(value) for key, value in vars(module).items()}]
        found += [{key: id(value) for key, value in each.items()} for each in (module._parameters, module._buffers)]
        found += [list(module._forward_hooks), list(module._forward_pre_hooks)]
    return found


def test_outputs_gradients_and_random_state_keep_their_bits(model: nn.Module, tokens: Tensor) -> None:
    expected = step(model, tokens)
    with guards_of(model) as guards:
        assert same_bits(step(model, tokens), expected)
    assert guards.healings == []


def test_every_linear_layer_embedding_and_head_is_guarded(model: nn.Module) -> None:
    with guards_of(model) as guards:
        assert sorted(guards.guards) == sorted(guarded_names(model))
        assert "lm_head" in guards.guards


def test_while_guarded_keys_parameters_and_types_look_as_before(model: nn.Module) -> None:
    before = everything_of(model)
    keys = list(model.state_dict())
    text = repr(model)
    with guards_of(model):
        assert list(model.state_dict()) == keys
        assert repr(model) == text
        assert isinstance(model.lm_head, nn.Linear)
        assert model.get_output_embeddings() is model.lm_head  # type: ignore[operator]
        now = everything_of(model)
        assert [each for each in now if not isinstance(each, type)] == [
            each for each in before if not isinstance(each, type)
        ]


def test_undo_makes_the_model_what_it_was(model: nn.Module, tokens: Tensor) -> None:
    before, expected = everything_of(model), step(model, tokens)
    guards = guards_of(model)
    step(model, tokens)
    guards.undo()
    guards.undo()
    assert everything_of(model) == before
    assert same_bits(step(model, tokens), expected)


def damaged(output: Tensor) -> Tensor:
    damage = torch.zeros_like(output)
    damage[..., -1, -1] = 10.0
    return output + damage


def fail_once(module: nn.Module) -> Iterator[None]:
    """A hook that damages the module's first output."""
    left = [1]

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        left[0] -= 1
        return damaged(output) if left[0] == 0 else None

    handle = module.register_forward_hook(hook)
    yield
    handle.remove()


def test_a_fault_in_any_guarded_layer_is_caught_and_healed(model: nn.Module, tokens: Tensor) -> None:
    expected = step(model, tokens)
    with guards_of(model) as guards:
        for name in guards.guards:
            for _ in fail_once(model.get_submodule(name)):
                assert same_bits(step(model, tokens), expected)
            assert [layer for layer, _ in guards.healings] == [name]
            assert guards.healings[0][1].verdict.attribution == "transient"
            guards.guards[name].healings.clear()


def test_a_fault_of_the_operator_itself_is_caught_in_each_of_its_calls(
    tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama()
    expected = step(model, tokens)
    plain, calls = F.linear, [0]
    with guards_of(model) as guards:
        linears = sum(isinstance(model.get_submodule(name), nn.Linear) for name in guards.guards)
        for at in range(1, linears + 1):
            calls[0] = 0

            def faulty(*args: Any, at: int = at) -> Tensor:
                calls[0] += 1
                return damaged(plain(*args)) if calls[0] == at else plain(*args)

            monkeypatch.setattr(F, "linear", faulty)
            assert same_bits(step(model, tokens), expected)
            monkeypatch.undo()
        assert len(guards.healings) == linears
        assert len({name for name, _ in guards.healings}) == linears


def test_a_fault_that_stays_names_its_layer(model: nn.Module, tokens: Tensor) -> None:
    with guards_of(model, max_retries=1):
        handle = model.lm_head.register_forward_hook(lambda module, args, output: damaged(output))  # noqa: ARG005
        with pytest.raises(AccuracyError, match="accuracy check failed: lm_head: got checksum"):
            step(model, tokens)
        handle.remove()


def test_generation_with_a_cache_gives_the_same_tokens(model: nn.Module, tokens: Tensor) -> None:
    model.eval()
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(tokens)}
    expected = model.generate(tokens, **options)  # type: ignore[operator]
    with guards_of(model) as guards:
        for _ in fail_once(model.lm_head):  # type: ignore[arg-type]
            assert same_bits(model.generate(tokens, **options), expected)  # type: ignore[operator]
        assert len(guards.healings) == 1


def test_copies_and_what_is_pickled_are_unguarded() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with guards_of(model):
        for twin in (copy.deepcopy(model), _saved_and_loaded(model)):
            assert type(twin[0]) is nn.Linear
            assert same_bits(twin[0].weight, model[0].weight)
        assert type(model[0]) is not nn.Linear


def _saved_and_loaded(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_hooks_are_given_the_layer_itself() -> None:
    layer = nn.Linear(3, 2)
    model = nn.Sequential(layer)
    given = []
    layer.register_forward_hook(lambda module, args, output: given.append(module))  # noqa: ARG005
    with guards_of(model):
        model(torch.ones(1, 3))
    assert given == [layer]
    assert given[0] is layer


def test_hooks_that_a_layer_has_before_may_change_its_results_and_what_they_are_given_is_guarded() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda module, args, output: output * 2)  # noqa: ARG005
    x = torch.randn(4, 3)
    expected, plain, faults = model(x), F.linear, [1]
    with guards_of(model) as guards, pytest.MonkeyPatch.context() as patch:
        assert same_bits(model(x), expected)

        def faulty(*args: Any) -> Tensor:
            faults[0] -= 1
            return damaged(plain(*args)) if faults[0] == 0 else plain(*args)

        patch.setattr(F, "linear", faulty)
        assert same_bits(model(x), expected)
        assert len(guards.healings) == 1
    assert type(model[0]) is nn.Linear


def test_layers_can_be_chosen() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with guards_of(model, layers=lambda name, module: name == "1") as guards:  # noqa: ARG005
        assert list(guards.guards) == ["1"]


def test_a_layer_whose_class_changed_since_cannot_be_undone_and_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    guards = guards_of(model)
    nn.utils.parametrizations.orthogonal(model[1])
    with pytest.raises(OptionError) as caught:
        guards.undo()
    assert str(caught.value) == (
        "guarded layers: got another class since: 1; allowed: the class that protect_model gave them. "
        "Undo first what was done to them last."
    )
    assert type(model[0]) is nn.Linear
    nn.utils.parametrize.remove_parametrizations(model[1], "weight")
    guards.undo()
    assert type(model[1]) is nn.Linear


@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        (nn.Sequential(nn.ReLU()), OptionError, "model: got no layer to guard; allowed: linear or embedding layers"),
        (torch.sin, OperandTypeError, "type of model: got builtin_function_or_method; allowed: a torch.nn.Module"),
    ],
)
def test_what_has_no_layers_is_refused(model: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        guards_of(model)
    assert text in str(caught.value)


def test_a_model_is_guarded_once_and_left_alone_if_that_fails() -> None:
    model = nn.Sequential(nn.Linear(3, 3), protect(nn.Linear(3, 3), bundles=None))
    assert list(guards_of(model).guards) == ["0"]
    with pytest.raises(OperandTypeError, match="layer 0: got guarded already; allowed: one guard each"):
        guards_of(model)
    plain = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(OptionError, match="has no choice of kernels"):
        guards_of(plain, fallback="eager")
    assert type(plain[0]) is nn.Linear


@pytest.mark.parametrize("guarding", [protect_model, protect])
def test_a_layer_without_a_shape_yet_is_refused_until_a_batch_has_run(guarding: Any) -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    with pytest.raises(OptionError, match=r"parameters that have no shape yet.*Run one batch through it first"):
        guarding(model, bundles=None)
    model(torch.ones(1, 3))
    guarding(model, bundles=None)
    assert model(torch.ones(1, 3)).shape == (1, 2)
