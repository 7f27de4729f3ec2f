"""patch_transformers against the models themselves: tiny, randomly initialised, with dropout off."""

from __future__ import annotations

import copy
import io
import math
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn

from steadysum.compat import ARCHITECTURES, Logits, patch_transformers
from steadysum.errors import OperandTypeError, PatchError, RangeError, ShapeError, UnsupportedModelError

transformers = pytest.importorskip(
    "transformers", reason="transformers is missing: pip install 'steadysum[transformers]'"
)

VOCAB: Final = 96


@pytest.fixture(autouse=True)
def one_thread(threads: Callable[[int], None]) -> None:
    """These models are so small that most of the time would go by in waiting for a second thread."""
    threads(1)


TINY: Final[dict[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "sliding_window": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    # Factors and softcaps that show: by default some of them are 1, or far above the logits of a random model.
    "logit_scale": 3.0,
    "logits_scaling": 0.25,
    "lm_head_multiplier": 3.0,
    "final_logit_softcapping": 0.5,
    "logits_soft_cap": 0.5,
}
DIFFERENT: Final[dict[str, dict[str, Any]]] = {
    "FalconForCausalLM": {"head_dim": None},  # None: this config has no such thing
    "FalconH1ForCausalLM": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    "GPTJForCausalLM": {"rotary_dim": 4},
    "GPTNeoForCausalLM": {"attention_types": [[["global"], 2]]},
    "OPTForCausalLM": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "RecurrentGemmaForCausalLM": {"num_hidden_layers": 3},  # the third is its first layer of attention
}


def tiny(name: str = "LlamaForCausalLM", **different: Any) -> Any:
    """A model of this class, in training mode."""
    kind = getattr(transformers, name)
    options = {key: value for key, value in (TINY | DIFFERENT.get(name, {}) | different).items() if value is not None}
    torch.manual_seed(0)
    model = kind(kind.config_class(**options)).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        head = model.get_output_embeddings()
        head.weight.mul_(20)  # logits of some size, so that factors and softcaps show
        if head.bias is not None:
            head.bias.uniform_(-1, 1)
    return model


def batch(rows: int = 3, length: int = 12) -> dict[str, Tensor]:
    """Token ids, padded at the end of the first row; labels that ignore the padding, and a prompt in the second."""
    tokens = torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[0, -3:] = 0
    tokens[mask == 0] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    labels[1, :5] = -100
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def step(model: Any, **call: Any) -> tuple[Any, dict[str, Tensor]]:
    """The result of a call, and the gradients of its loss."""
    model.zero_grad()
    torch.manual_seed(2)  # dropout that isn't a module's, noise in routers
    output = model(**call)
    (output[0] if isinstance(output, tuple) else output.loss).backward()
    return output, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_loss(ours: Tensor, stock: Tensor) -> None:
    assert ours.dtype == stock.dtype
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=0)


def assert_same_gradients(ours: dict[str, Tensor], stock: dict[str, Tensor]) -> None:
    """To 1e-5 of the whole gradient: some 100 roundings of fp32."""
    assert ours.keys() == stock.keys()
    whole = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in stock.values()))
    for name, gradient in stock.items():
        assert float((ours[name] - gradient).norm()) <= 1e-5 * whole, name


# --- The same loss ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_has_the_loss_and_the_gradients_of_its_own_forward(name: str) -> None:
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    model = tiny(name)
    stock, stock_gradients = step(model, **batch())
    with patch_transformers(model):
        ours, gradients = step(model, **batch())
    assert ours.logits is None
    assert [key for key in stock if key != "logits"] == list(ours)
    assert_same_loss(ours.loss, stock.loss)
    assert_same_gradients(gradients, stock_gradients)


@pytest.mark.parametrize("name", ["CohereForCausalLM", "GraniteForCausalLM", "Gemma2ForCausalLM", "PhiForCausalLM"])
def test_factors_softcaps_and_biases_of_the_tests_show_in_the_loss(name: str) -> None:
    """The test above could pass without them otherwise."""
    model = tiny(name)
    with torch.no_grad():
        expected = model(**batch()).loss
        hidden = model.model(batch()["input_ids"], batch()["attention_mask"]).last_hidden_state
        plain = model.loss_function(hidden @ model.lm_head.weight.T, batch()["labels"], VOCAB)
    assert abs(float(plain - expected)) > 1e-3 * float(expected)


@pytest.mark.parametrize("items", [17, torch.tensor(17)], ids=["int", "tensor"])
def test_num_items_in_batch_divides_the_sum(items: int | Tensor) -> None:
    model = tiny()
    stock, stock_gradients = step(model, **batch(), num_items_in_batch=items)
    with patch_transformers(model):
        ours, gradients = step(model, **batch(), num_items_in_batch=items)
    assert_same_loss(ours.loss, stock.loss)
    assert_same_gradients(gradients, stock_gradients)


def test_accumulated_gradients_of_parts_are_those_of_the_whole_batch() -> None:
    model, whole = tiny(), batch()
    _, expected = step(model, **whole)
    items = int((whole["labels"][:, 1:] != -100).sum())
    model.zero_grad()
    with patch_transformers(model):
        for row in range(3):
            part = {name: tensor[row : row + 1] for name, tensor in whole.items()}
            model(**part, num_items_in_batch=items).loss.backward()
    assert_same_gradients({name: p.grad for name, p in model.named_parameters()}, expected)


def test_tied_weights_get_both_gradients() -> None:
    model = tiny(tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    _, stock = step(model, **batch())
    with patch_transformers(model):
        _, ours = step(model, **batch())
    assert_same_gradients(ours, stock)


def test_shift_labels_and_ignore_index_are_honoured() -> None:
    model, call = tiny(), batch()
    shifted = nn.functional.pad(call["labels"], (0, 1), value=-100)[:, 1:].clone()
    shifted[shifted == -100] = 7
    options = {"shift_labels": shifted, "ignore_index": 7}
    stock, _ = step(model, **call, **options)
    with patch_transformers(model):
        ours, _ = step(model, **call, **options)
    assert_same_loss(ours.loss, stock.loss)


def test_router_losses_are_added_by_the_model() -> None:
    model = tiny("MixtralForCausalLM", router_aux_loss_coef=0.5)
    stock, stock_gradients = step(model, **batch(), output_router_logits=True)
    with patch_transformers(model):
        ours, gradients = step(model, **batch(), output_router_logits=True)
    assert_same_loss(ours.loss, stock.loss)
    assert torch.equal(ours.aux_loss, stock.aux_loss)
    assert_same_gradients(gradients, stock_gradients)


def test_all_labels_ignored_is_nan_as_in_the_stock_loss() -> None:
    model, call = tiny(), batch()
    call["labels"] = torch.full_like(call["labels"], -100)
    with patch_transformers(model):
        assert model(**call).loss.isnan()


def test_gradient_checkpointing_changes_nothing() -> None:
    model = tiny()
    _, stock = step(model, **batch(), use_cache=False)
    model.gradient_checkpointing_enable()
    with patch_transformers(model):
        _, ours = step(model, **batch(), use_cache=False)
    assert_same_gradients(ours, stock)


def test_under_autocast_the_loss_is_as_near_to_fp32_as_the_stock_one() -> None:
    model = tiny()
    exact = step(model, **batch())[0].loss.item()
    with torch.autocast("cpu", torch.bfloat16):
        stock, _ = step(model, **batch())
        with patch_transformers(model):
            ours, gradients = step(model, **batch())
    assert ours.loss.dtype == torch.float32
    one_rounding = torch.finfo(torch.bfloat16).eps / 2 * exact  # of the hidden states, which both losses have
    assert abs(ours.loss.item() - exact) <= abs(stock.loss.item() - exact) + one_rounding
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())


def test_a_compiled_model_has_the_same_loss() -> None:
    model = tiny()
    stock, stock_gradients = step(model, **batch(), use_cache=False)
    with patch_transformers(model):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        output = compiled(**batch(), use_cache=False)
        model.zero_grad()
        output.loss.backward()
    assert output.logits is None
    assert_same_loss(output.loss, stock.loss)
    assert_same_gradients({name: p.grad for name, p in model.named_parameters()}, stock_gradients)


# --- What stays as it was ---------------------------------------------------------------------------------------------
def unchanged_calls() -> list[Callable[[Any], Any]]:
    call = batch()
    unlabelled = {name: tensor for name, tensor in call.items() if name != "labels"}
    return [
        lambda model: model(**unlabelled).logits,
        lambda model: model.eval()(**call).loss,
        lambda model: model.eval()(**call).logits,
        lambda model: model.eval().generate(call["input_ids"][1:], max_new_tokens=5, do_sample=False),
        lambda model: model.lm_head(torch.ones(2, 3, 32)),
        lambda model: model.loss_function(torch.ones(1, 4, VOCAB), torch.ones(1, 4, dtype=torch.int64), VOCAB),
    ]


@pytest.mark.parametrize(
    "call", unchanged_calls(), ids=["unlabelled", "loss", "logits", "generate", "head", "function"]
)
def test_every_other_call_has_the_bits_of_the_unpatched_model(call: Callable[[Any], Any]) -> None:
    model = tiny()
    with torch.no_grad():
        before = call(model)
        model.train()
        with patch_transformers(model):
            model(**batch())
            assert torch.equal(call(model), before)


def test_a_verified_loss_has_the_bits_of_an_unverified_one() -> None:
    found = []
    for verify in ("off", "sampled"):
        model = tiny()
        with patch_transformers(model, verify=verify):
            found.append(step(model, **batch()))
    (plain, gradients), (verified, others) = found
    assert torch.equal(plain.loss, verified.loss)
    assert all(torch.equal(gradients[name], others[name]) for name in gradients)
    with patch_transformers(tiny(), verify="twice") as patch, pytest.raises(RangeError, match="verify: got 'twice'"):
        patch.model(**batch())


def test_evaluation_is_included_on_request() -> None:
    model = tiny().eval()
    with torch.no_grad():
        stock = model(**batch())
        with patch_transformers(model, when="labels"):
            ours = model(**batch())
            unlabelled = model(batch()["input_ids"], batch()["attention_mask"])
    assert ours.logits is None
    assert_same_loss(ours.loss, stock.loss)
    assert torch.equal(unlabelled.logits, stock.logits)


def attributes(model: Any) -> list[Any]:
    modules = [model, model.lm_head]
    return [{name: copy.copy(value) for name, value in module.__dict__.items()} for module in modules]


def test_undo_restores_the_model() -> None:
    model = tiny()
    stock, _ = step(model, **batch())
    before = attributes(model)
    patch = patch_transformers(model)
    model(**batch())
    assert attributes(model) != before
    patch.undo()
    assert attributes(model) == before
    patch.undo()  # does nothing
    again, _ = step(model, **batch())
    assert torch.equal(again.loss, stock.loss)
    assert torch.equal(again.logits, stock.logits)


def test_undo_restores_a_loss_function_that_was_set() -> None:
    model = tiny()
    own = model.loss_function
    model.loss_function = own
    before = attributes(model)
    patch_transformers(model).undo()
    assert attributes(model) == before


def test_an_error_in_a_with_block_undoes_the_patch_too() -> None:
    model = tiny()
    before = attributes(model)
    with pytest.raises(ZeroDivisionError), patch_transformers(model):
        raise ZeroDivisionError
    assert attributes(model) == before


def test_after_an_error_in_a_forward_the_head_is_itself() -> None:
    model = tiny()
    rows = torch.ones(2, 32)
    expected = model.lm_head(rows)
    with patch_transformers(model):
        with pytest.raises(IndexError):
            model(input_ids=torch.full((1, 4), VOCAB), labels=torch.ones(1, 4, dtype=torch.int64))
        assert torch.equal(model.lm_head(rows), expected)
        model(**batch()).loss.backward()


def test_the_patched_model_takes_the_same_arguments() -> None:
    """transformers.Trainer looks at the signature, to find out what it may pass."""
    import inspect

    model = tiny()
    before = inspect.signature(model.forward)
    with patch_transformers(model):
        assert inspect.signature(model.forward) == before


def test_positional_labels_are_found() -> None:
    model, call = tiny(), batch()
    stock, _ = step(model, **call)
    with patch_transformers(model):
        ours = model(call["input_ids"], call["attention_mask"], None, None, None, call["labels"])
    assert ours.logits is None
    assert_same_loss(ours.loss, stock.loss)


def test_in_a_tuple_logits_keep_their_place() -> None:
    model = tiny()
    stock, _ = step(model, **batch(), return_dict=False, output_hidden_states=True)
    with patch_transformers(model):
        ours, _ = step(model, **batch(), return_dict=False, output_hidden_states=True)
    assert len(ours) == len(stock)
    assert_same_loss(ours[0], stock[0])
    assert ours[1] is None
    assert torch.equal(ours[3][-1], stock[3][-1])


def test_the_head_multiplies_no_rows() -> None:
    model, shapes = tiny(), []
    patch = patch_transformers(model)
    for _ in range(2):
        watch = model.lm_head.register_forward_hook(lambda _head, args, _output: shapes.append(args[0].shape[-2]))
        model(**batch())
        watch.remove()
    patch.undo()
    assert shapes == [0, 0]


def test_a_copy_of_a_patched_model_has_a_patch_of_its_own() -> None:
    model = tiny()
    with patch_transformers(model):
        model(**batch())
        twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.lm_head.weight.zero_()
    model.zero_grad()
    output = twin(**batch())
    output.loss.backward()
    assert output.logits is None
    assert output.loss.item() == pytest.approx(math.log(VOCAB), rel=1e-6)
    assert model.lm_head.weight.grad is None
    assert twin.lm_head.weight.grad is not None


def test_a_patched_model_can_be_saved_whole() -> None:
    model, file = tiny(), io.BytesIO()
    with patch_transformers(model):
        expected = model(**batch()).loss
        torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(**batch()).loss, expected)


def test_a_patched_model_is_freed_with_its_last_reference() -> None:
    import weakref

    model = tiny()
    patch_transformers(model)
    model(**batch()).loss.backward()
    seen = weakref.ref(model.lm_head)
    del model
    assert seen() is None


# --- What is refused --------------------------------------------------------------------------------------------------
class Doubled(transformers.LlamaForCausalLM):
    """Like Llama, but its logits are doubled, and it says so nowhere."""

    factor = 2.0

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> Any:
        outputs = self.model(input_ids=input_ids)
        logits = self.lm_head(outputs.last_hidden_state) * self.factor
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size)
        return transformers.modeling_outputs.CausalLMOutputWithPast(loss=loss, logits=logits)


class OwnLoss(transformers.LlamaForCausalLM):
    """A forward with a loss of its own."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> Any:
        return nn.functional.cross_entropy(self.lm_head(self.model(input_ids)[0]).flatten(0, 1), labels.flatten())


class Renamed(transformers.LlamaForCausalLM):
    """Llama's forward under another name."""


def of_class(kind: Any) -> Any:
    return kind(tiny().config).train()


def with_custom_loss() -> Any:
    model = tiny()
    model.loss_function = lambda *_, **__: torch.zeros(())
    return model


def with_other_head() -> Any:
    model = tiny()
    model.set_output_embeddings(nn.Sequential(model.lm_head))
    return model


def encoder() -> Any:
    options = {key: TINY[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    return transformers.BertModel(transformers.BertConfig(**options))


REFUSED: Final[list[tuple[str, Callable[[], Any], Logits | None, type[Exception], str]]] = [
    ("no transformers model", lambda: nn.Linear(2, 2), None, OperandTypeError, "got Linear; .* Pass the model inside"),
    ("an encoder", encoder, None, UnsupportedModelError, r"BertModel\.forward, of which it isn't known"),
    ("unknown forward", lambda: of_class(Doubled), None, UnsupportedModelError, "pass logits=Logits"),
    ("own loss", lambda: of_class(OwnLoss), Logits(), UnsupportedModelError, "doesn't take its loss from self.loss_f"),
    ("custom loss", with_custom_loss, None, UnsupportedModelError, "the loss_function of .*: got <lambda>"),
    ("other head", with_other_head, None, UnsupportedModelError, "the head of .*: got Sequential; allowed: torch.nn.L"),
    ("unknown attribute", tiny, Logits(times="config.nothing"), AttributeError, "nothing"),
]


@pytest.mark.parametrize(("make", "logits", "error", "text"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_refused_is_left_unchanged(
    make: Callable[[], Any], logits: Logits | None, error: type[Exception], text: str
) -> None:
    model = make()
    hooks = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    before = dict(model.__dict__)
    with pytest.raises(error, match=text):
        patch_transformers(model, logits=logits)
    assert hooks == [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    assert model.__dict__ == before


def test_a_second_patch_is_an_error_and_the_first_stays() -> None:
    model = tiny()
    with patch_transformers(model):
        with pytest.raises(PatchError, match=r"patched already; .* Call undo\(\) on the other first"):
            patch_transformers(model)
        assert model(**batch()).logits is None
    patch_transformers(model).undo()


def test_an_unknown_time_is_refused() -> None:
    with pytest.raises(RangeError, match="'training' or 'labels'"):
        patch_transformers(tiny(), when="always")  # type: ignore[arg-type]


def test_a_subclass_that_keeps_the_forward_is_patched_like_its_base() -> None:
    model = of_class(Renamed)
    stock, _ = step(model, **batch())
    with patch_transformers(model):
        ours, _ = step(model, **batch())
    assert_same_loss(ours.loss, stock.loss)


def test_the_first_call_notices_a_forward_that_does_something_else() -> None:
    model, tokens = of_class(Doubled), batch()["input_ids"]
    with (
        patch_transformers(model, logits=Logits()),
        pytest.raises(UnsupportedModelError, match="what the model's forward does"),
    ):
        model(tokens, labels=tokens)
    with patch_transformers(model, logits=Logits(softcap="factor")), pytest.raises(UnsupportedModelError):
        model(tokens, labels=tokens)


def test_a_model_of_ones_own_is_described_by_its_logits() -> None:
    model, tokens = of_class(Doubled), batch()["input_ids"]
    stock, stock_gradients = step(model, input_ids=tokens, labels=tokens)
    with patch_transformers(model, logits=Logits(times="factor")):
        ours, gradients = step(model, input_ids=tokens, labels=tokens)
    assert_same_loss(ours.loss, stock.loss)
    assert_same_gradients(gradients, stock_gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma2ForCausalLM", "CohereForCausalLM", "GraniteForCausalLM"])
def test_the_first_call_finds_no_fault_with_a_rounded_forward(name: str, dtype: torch.dtype) -> None:
    model = tiny(name).to(dtype)
    with patch_transformers(model):
        assert model(**batch()).loss.isfinite()


def test_a_loss_function_set_over_the_patch_is_an_error() -> None:
    model = tiny()
    with patch_transformers(model):
        model(**batch())
        model.loss_function = lambda logits, *_, **__: logits.sum()
        with pytest.raises(PatchError, match=r"Call undo\(\) before setting another loss_function"):
            model(**batch())
    assert model.loss_function(torch.ones(2)) == 2  # undo leaves it


def test_a_config_with_another_vocabulary_than_the_head_is_an_error() -> None:
    model = tiny()
    model.config.vocab_size = VOCAB // 2  # the stock loss would take half a row of logits for a row
    with patch_transformers(model), pytest.raises(ShapeError, match="rows of the head: got 96; allowed: 48"):
        model(**batch())


def test_two_threads_in_one_model_are_an_error() -> None:
    model, inside, errors = tiny(), threading.Event(), []

    def call() -> None:
        try:
            model(**batch())
        except PatchError as error:
            errors.append(str(error))

    def meanwhile(*_: Any) -> None:
        if not inside.is_set():
            inside.set()
            other = threading.Thread(target=call)
            other.start()
            other.join()

    with patch_transformers(model):
        watch = model.model.register_forward_hook(meanwhile)
        assert model(**batch()).loss.isfinite()
        watch.remove()
    assert len(errors) == 1
    assert "Use DistributedDataParallel" in errors[0]
