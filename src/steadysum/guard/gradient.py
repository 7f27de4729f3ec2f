"""Gradient: a linear layer's products of backward, input gradient and weight gradient, under the layer's own check.

A hook on the graph's node sees what the node was given and what it gave, whatever autocast has made of the operands.
A wrong gradient is computed again and replaced. Not here: gradients of other operators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.attempt import Target, failed, is_unguarded, judge
from steadysum.guard.checks.checksum import Checksum
from steadysum.guard.healing import Before, Healing, Held, heal
from steadysum.guard.options import Options
from steadysum.guard.refusal import watch
from steadysum.guard.restore import ambient
from steadysum.notices import post

__all__ = ["watch_gradients"]

# What autograd puts between a linear product and the layer's output: shapes, a bias added afterwards, nothing else.
_AFTER_PRODUCT: Final = frozenset({"ViewBackward0", "UnsafeViewBackward0", "AddBackward0", "AliasBackward0"})
_DEEPEST: Final = 4
# Nodes of a product of two matrices: the names of its saved operands, and the place of the first one's gradient.
_PRODUCTS: Final = {
    "MmBackward0": (("_saved_self", "_saved_mat2"), 0),
    "AddmmBackward0": (("_saved_mat1", "_saved_mat2"), 1),
}


def watch_gradients(
    options: Options,
    checks: tuple[Any, ...],
    target: Target,
    output: Any,
    remember: Callable[[Healing], None],
) -> str | None:
    """Has the gradients of a linear product checked, when backward computes them.

    Args:
        options: the guard's.
        checks: of the call; without a Checksum that fits, gradients aren't checked.
        target: the call.
        output: its result, as the caller gets it.
        remember: is told of what was done about a wrong gradient.

    Returns:
        Why gradients that could be checked won't be, or None.
    """
    if not isinstance(output, Tensor) or output.grad_fn is None:
        return None
    made = target.made(output)
    own = tuple(check for check in checks if isinstance(check, Checksum) and check.fits(made) is None)
    node = _product_of(output) if own else None
    if node is None:
        return None
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        # Whose tensors are saved by hooks may have them but once: recomputed ones are gone when backward has used them.
        return "hooks save its operands for backward, as activation checkpointing without use_reentrant does"
    plain = tuple(dataclasses.replace(check, operands=None) for check in own)  # here operands are plain matrices
    node.register_hook(_hook(options, plain, *_PRODUCTS[node.name()], remember))
    return None


def _product_of(output: Tensor) -> Any:
    """The node of the product that the output comes from, or None: the layer was computed in another way."""
    node: Any = output.grad_fn
    for _ in range(_DEEPEST):
        if node is None or node.name() in _PRODUCTS:
            return node
        if node.name() not in _AFTER_PRODUCT:
            return None
        node = node.next_functions[0][0]
    return None


def _hook(
    options: Options,
    checks: tuple[Any, ...],
    saved: tuple[str, str],
    place: int,
    remember: Callable[[Healing], None],
) -> Callable[[tuple[Tensor | None, ...], tuple[Tensor | None, ...]], tuple[Tensor | None, ...] | None]:
    # It must not hold the node, nor what the node has saved: they would never be freed, or not with the graph.
    def hook(given: tuple[Tensor | None, ...], upstream: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
        node = torch._C._current_autograd_node()
        if upstream[0] is None or is_unguarded() or getattr(node, "_saved_alpha", 1) != 1:
            return None
        result = list(given)
        ways = (_of_first, _of_second)
        for offset, name in enumerate(("input_gradient", "weight_gradient")):
            gradient = given[place + offset]
            if gradient is None:
                continue
            other = getattr(node, saved[1 - offset])  # what the upstream gradient was multiplied by
            like = (getattr(node, f"{saved[offset]}_sym_sizes"), getattr(node, f"{saved[offset]}_sym_strides"))
            product = ways[offset](upstream[0], other, *like)
            result[place + offset] = _checked(options, checks, name, product, gradient, remember)
        return None if all(new is old for new, old in zip(result, given, strict=True)) else tuple(result)

    return hook


class _Product(NamedTuple):
    """A gradient as a product of two matrices, in the order in which autograd multiplies them: bits depend on it."""

    left: Tensor
    right: Tensor
    is_transposed: bool  # the gradient is the product's transpose


def _of_first(upstream: Tensor, second: Tensor, sizes: Any, strides: Any) -> _Product:
    if _is_by_columns(sizes, strides):
        return _Product(second, upstream.t(), is_transposed=True)
    return _Product(upstream, second.t(), is_transposed=False)


def _of_second(upstream: Tensor, first: Tensor, sizes: Any, strides: Any) -> _Product:
    if _is_by_columns(sizes, strides):
        return _Product(upstream.t(), first, is_transposed=True)
    return _Product(first.t(), upstream, is_transposed=False)


def _is_by_columns(sizes: Any, strides: Any) -> bool:
    return bool(strides[0] == 1 and strides[1] == sizes[0])


def _checked(
    options: Options,
    checks: tuple[Any, ...],
    name: str,
    product: _Product,
    gradient: Tensor,
    remember: Callable[[Healing], None],
) -> Tensor:
    """The gradient, or the right one."""
    options = dataclasses.replace(
        options, operator=f"{options.operator}.{name}", fallback=None, restore=False, all_ranks_decide=None
    )
    target = Target(torch.mm, (product.left, product.right), {})
    output: Tensor = gradient.t() if product.is_transposed else gradient
    findings = failed(judge(checks, target.made(output), options.operator))
    if not findings:
        post("call", operator=options.operator, outcome="clean")
        return gradient
    watched = watch(target.function, target.args, target.kwargs)
    before = Before(ambient(watched.devices, target.args, target.kwargs, runs_python=False), watched, None)
    output = heal(options, checks, target, before, Held(output), findings, remember)
    return output.t() if product.is_transposed else output
