"""patch_transformers: a Hugging Face causal language model whose training loss stores no logits.

Nothing of transformers is copied. A forward of the model stays its own, with hooks around it and another loss:

    begin   before the model's forward   Are labels given, and is the model training? Then this call is ours.
    take    before the head's forward    Keep the hidden states, and give the head no rows to multiply.
    probe   after the head's, once       Give the forward known logits, to see what it makes of them.
    loss    the model's loss_function    linear_cross_entropy of the hidden states and the head's weight.
    end     after the model's forward    The result without logits; the call is over.

So caches, router losses, attention outputs and whatever else a forward returns are what they were. What a forward does
to its logits between head and loss is data: architectures.py. Not here: other losses, heads cut over several devices.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from steadysum.compat.architectures import ARCHITECTURES, Logits
from steadysum.errors import OperandTypeError, PatchError, RangeError, ShapeError, UnsupportedModelError
from steadysum.ops import linear_cross_entropy

__all__ = ["TransformersPatch", "patch_transformers"]


class TransformersPatch:
    """A model's patch: undo() takes it off again, as does leaving a `with` block."""

    def __init__(self, model: nn.Module, handles: list[RemovableHandle], before: dict[str, Any]) -> None:
        self.model = model
        self._handles = handles
        self._before = before  # `_loss_function`, if the model had one of its own

    def undo(self) -> None:
        """Give the model its own loss back. Calling it again does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if _patched(self.model):
            del self.model.__dict__["_loss_function"]
            self.model.__dict__.update(self._before)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.undo()


def patch_transformers(
    model: nn.Module,
    *,
    when: Literal["training", "labels"] = "training",
    kernel: str = "auto",
    verify: str = "off",
    gradient_filter: float | None = None,
    logits: Logits | None = None,
) -> TransformersPatch:
    """Let a Hugging Face causal language model compute its training loss without storing logits.

    A call of the model with labels, in training mode, computes the loss of transformers' ForCausalLMLoss by
    linear_cross_entropy: the same shift of the labels, -100 ignored, sum / num_items_in_batch where that is given,
    head bias, logit scale and softcap. The result's `logits` is None in such a call (in a tuple, too: its place is
    kept). All other calls are untouched: without labels, in generate(), in evaluation.

    The first such call also checks what the model's forward does to logits, and raises if it isn't what we expect
    (not under torch.compile).

    Args:
        model: a transformers.PreTrainedModel of one of ARCHITECTURES, not yet patched. Of a wrapped model (PEFT,
            DistributedDataParallel), the model inside.
        when: "training": in training mode only; "labels": in evaluation mode, too.
        kernel, verify, gradient_filter: as in linear_cross_entropy.
        logits: for a model that isn't in ARCHITECTURES: what its forward does to its logits.

    Returns:
        The patch. undo(), or the end of a `with` block, takes it off.

    Raises:
        OperandTypeError, UnsupportedModelError, PatchError (patched already), RangeError; the model is unchanged then.

    >>> with patch_transformers(model):  # doctest: +SKIP
    ...     model(input_ids=tokens, labels=tokens).loss.backward()
    """
    if when not in ("training", "labels"):
        raise RangeError("when", repr(when), "'training' or 'labels'", "'labels' includes evaluation.")
    rule, head, stock = _accept(model, logits)
    position = list(inspect.signature(model.forward).parameters).index("labels")
    fused = _FusedLoss(rule, when, kernel, verify, gradient_filter, position, stock)
    before = {name: value for name, value in model.__dict__.items() if name == "_loss_function"}
    handles = [
        model.register_forward_pre_hook(fused.begin, with_kwargs=True),
        head.register_forward_pre_hook(fused.take),
        head.register_forward_hook(fused.probe),
        model.register_forward_hook(fused.end, with_kwargs=True, always_call=True),
    ]
    model.__dict__["_loss_function"] = fused.loss  # where transformers' own setter of loss_function puts it
    return TransformersPatch(model, handles, before)


def _accept(model: Any, logits: Logits | None) -> tuple[Logits, nn.Linear, Callable[..., Tensor]]:
    """What the model does to its logits, its head and its loss, or an error that says why it can't be patched."""
    import transformers

    name = type(model).__name__
    if not isinstance(model, transformers.PreTrainedModel):
        raise OperandTypeError(
            "type of model", name, "a transformers.PreTrainedModel", "Pass the model inside of a wrapper."
        )
    if _patched(model):
        raise PatchError(
            name, "a model that is patched already", "one patch at a time", "Call undo() on the other first."
        )
    owner: Any = next(kind for kind in type(model).__mro__ if "forward" in vars(kind))
    if logits is None:
        if owner.__name__ not in ARCHITECTURES or not owner.__module__.startswith("transformers."):
            raise UnsupportedModelError(
                f"the forward of {name}",
                f"{owner.__module__}.{owner.__name__}.forward, of which it isn't known what it does to logits",
                f"the forwards of {', '.join(ARCHITECTURES)}",
                "If it applies no more than a factor and a softcap between head and loss, pass logits=Logits(...).",
            )
        logits = ARCHITECTURES[owner.__name__]
    code = inspect.unwrap(owner.forward).__code__  # below the decorators of transformers
    if "loss_function" not in code.co_names or "labels" not in code.co_varnames:
        raise UnsupportedModelError(
            f"the forward of {name}",
            "a forward that doesn't take its loss from self.loss_function",
            "a forward(..., labels=...) that calls self.loss_function",
            "A newer transformers may have one.",
        )
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise UnsupportedModelError(
            f"the head of {name}",
            type(head).__name__,
            "torch.nn.Linear itself",
            "Quantised, adapted or missing heads aren't supported; leave the head out of quantisation and adapters.",
        )
    stock = model.loss_function
    if getattr(stock, "__name__", None) != "ForCausalLMLoss":
        raise UnsupportedModelError(
            f"the loss_function of {name}",
            str(getattr(stock, "__name__", stock)),
            "transformers' ForCausalLMLoss",
            "Patch a model whose loss_function hasn't been replaced.",
        )
    logits.values(model)  # a name that the model doesn't have is an AttributeError here, before any change
    return logits, head, stock


def _patched(model: nn.Module) -> bool:
    return isinstance(getattr(model.__dict__.get("_loss_function"), "__self__", None), _FusedLoss)


class _Call:
    """What is known of the model's call that is running."""

    def __init__(self) -> None:
        self.checked = False  # the probe went through the forward as expected; the one thing that outlives a call
        self.thread = 0
        self.clear()

    def clear(self) -> None:
        self.ours = False
        self.scale = 1.0
        self.softcap: float | None = None
        self.head: nn.Linear | None = None
        self.hidden: Tensor | None = None  # [..., H], what the head was given
        self.logits: Tensor | None = None  # what the forward gave to the loss: the probe, or no rows


class _FusedLoss:
    """The hooks, and the loss. It refers to the model and its head only during a call: no cycle keeps them alive."""

    def __init__(
        self,
        rule: Logits,
        when: str,
        kernel: str,
        verify: str,
        gradient_filter: float | None,
        labels_position: int,
        stock: Callable[..., Tensor],
    ) -> None:
        self.rule = rule
        self.when = when
        self.kernel = kernel
        self.verify = verify
        self.gradient_filter = gradient_filter
        self.labels_position = labels_position
        self.stock = stock
        self.call = _Call()

    def begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = self.call
        if not torch.compiler.is_compiling():
            thread = threading.get_ident()
            if call.ours and call.thread != thread:  # DataParallel's replicas share their hooks
                raise PatchError(
                    f"a call of {type(model).__name__}",
                    "another thread's call of it that isn't over",
                    "one call at a time",
                    "Use DistributedDataParallel in place of DataParallel; give each thread a model of its own.",
                )
            call.thread = thread
        call.clear()
        labels = kwargs.get("labels")
        if labels is None and len(args) > self.labels_position:
            labels = args[self.labels_position]
        if labels is not None and (model.training or self.when == "labels"):
            call.ours = True
            call.scale, call.softcap = self.rule.values(model)

    def take(self, head: nn.Linear, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        call = self.call
        if not call.ours:
            return None
        if call.hidden is not None:
            raise UnsupportedModelError(
                "the head", "a second call of it in one forward", "one call", "Call undo() on the patch."
            )
        call.head = head
        call.hidden = args[0]
        return (args[0].detach()[..., :0, :],)

    def probe(self, _head: nn.Linear, _args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """Once, give the forward a row of logits of which it is known what should become of them."""
        call = self.call
        if not call.ours or call.checked or torch.compiler.is_compiling():
            return None
        return _probe(output.shape[-1]).to(output)

    def loss(self, *args: Any, **kwargs: Any) -> Tensor:
        """The model's loss_function: ours in a call that is ours."""
        return self.stock(*args, **kwargs) if self.call.hidden is None else self._fused(*args, **kwargs)

    def _fused(
        self,
        logits: Tensor,
        labels: Tensor | None,
        vocab_size: int,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **_: Any,  # which ForCausalLMLoss ignores, too
    ) -> Tensor:
        """ForCausalLMLoss, with the hidden states in place of the logits."""
        call = self.call
        hidden, head = call.hidden, call.head
        assert hidden is not None
        assert head is not None
        if logits.numel() > 0:
            _check_probe(logits, call.scale, call.softcap)
            call.checked = True
        if vocab_size != head.weight.shape[0]:
            raise ShapeError(
                "rows of the head", str(head.weight.shape[0]), f"{vocab_size}, the config's vocab_size", "Resize one."
            )
        call.logits = logits
        if shift_labels is None:
            assert labels is not None
            shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        total = linear_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]),
            head.weight,
            shift_labels.reshape(-1).to(hidden.device),
            linear_bias=head.bias,
            reduction="mean" if num_items_in_batch is None else "sum",
            ignore_index=ignore_index,
            scale=call.scale,
            softcap=call.softcap,
            kernel=self.kernel,
            verify=self.verify,
            gradient_filter=self.gradient_filter,
        )
        if num_items_in_batch is None:
            return total
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(total.device)
        return total / num_items_in_batch

    def end(self, model: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any], output: Any) -> Any:
        call = self.call
        ours, logits = call.ours, call.logits
        call.clear()
        if not ours or output is None:  # None: the forward raised
            return None
        if logits is None:
            raise PatchError(
                f"the loss of {type(model).__name__}",
                "a forward that didn't ask the patch for it",
                "the loss_function that patch_transformers has set",
                "Call undo() before setting another loss_function, and patch again after.",
            )
        if isinstance(output, tuple):
            return tuple(None if value is logits else value for value in output)
        return dataclasses.replace(output, logits=None)


PROBED: Final = 64.0  # logits from -64 to 64: far enough out for any softcap in use (15 to 50) to show


def _probe(vocab: int) -> Tensor:
    return torch.linspace(-PROBED, PROBED, vocab).reshape(1, 1, vocab)


def _check_probe(found: Tensor, scale: float, softcap: float | None) -> None:
    expected = _probe(found.shape[-1]).double() * scale
    if softcap is not None:
        expected = softcap * torch.tanh(expected / softcap)
    # The forward rounds at most five times (the probe itself, scale, / softcap, tanh, * softcap), each by half an eps.
    allowed = 5 * torch.finfo(found.dtype).eps * PROBED * abs(scale)
    if found.shape != expected.shape or (found.detach().cpu().double() - expected).abs().max() > allowed:
        raise UnsupportedModelError(
            "what the model's forward does to its logits",
            "something else than the patch expects",
            f"scale {scale}, softcap {softcap}",
            "Call undo() on the patch; the installed transformers may differ from those it was tested with.",
        )
