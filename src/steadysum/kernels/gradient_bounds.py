"""How far a kernel's gradients may be from float64 by rounding alone, given the coefficients that they are made of.

Those are taken as the kernel has them: what they are made of is checked where it is made. Bounds as in bounds.py.
Not here: who compares (sampled.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadysum.kernels import reference
from steadysum.kernels.bounds import Exact, ExpTerms, Roundings, exp_terms, logits, sizes, slices, wide
from steadysum.kernels.gradients import LogitGradient
from steadysum.kernels.problem import Operands

__all__ = ["column_gradients", "input_gradient"]


def _logit_gradients(
    call: Operands,
    z: Exact,  # [N, V], its logits
    largest: Tensor,  # [N], the max that distances are measured from, as the kernel has it
    terms: LogitGradient,
    roundings: Roundings,
    *,
    all_columns: bool,
) -> Exact:  # [N, valid_vocab]
    """The gradient of the logits before all options, with the coefficients as the kernel has them.

    `all_columns`: whether the call's columns are the whole vocabulary: then a row's only candidate for the max is it.
    """
    u = roundings.unit
    valid = slice(call.valid_vocab)
    z = Exact(z.value[:, valid], z.bound[:, valid])
    largest = largest.double()
    terms = LogitGradient(*(None if each is None else each.double()[:, None] for each in terms))

    def gradient(**coefficients: Tensor | None) -> Tensor:
        flat = {name: None if each is None else each[:, 0] for name, each in coefficients.items()}
        return reference.logit_gradient(call, z.value, largest, LogitGradient(**flat))

    g = gradient(column=terms.column, dense=terms.dense, target=terms.target)
    size = _direct_size(call, z.value, terms)
    bound = torch.zeros_like(g)
    if terms.exp is not None or terms.slope is not None:
        through_exp, off, d = _through_exp(call, z, largest, terms, u)
        if terms.keep_above is not None:
            kept, unsure = (
                d.exp >= terms.keep_above,
                (d.exp - terms.keep_above).abs() <= d.of_exp + u * terms.keep_above,
            )
            off = torch.where(unsure, off + through_exp.abs(), torch.where(kept, off, 0.0))
            through_exp = torch.where(kept, through_exp, 0.0)
        g, size, bound = g + through_exp, size + through_exp.abs(), off
    if terms.tie is not None:
        ties = (z.value - largest[:, None]).abs() <= z.bound + u * largest[:, None].abs()
        ties |= z.value == largest[:, None]  # both infinite
        is_sure = ties.sum(dim=1, keepdim=True) == 1 if all_columns else torch.zeros_like(ties[:, :1])
        share = torch.where(is_sure, 1.0, 0.5)
        g = g + torch.where(ties, terms.tie * share, 0.0)
        bound = bound + torch.where(ties, terms.tie.abs() * (1 - share), 0.0)
        size = size + torch.where(ties, terms.tie.abs(), 0.0)
    bound = bound + 8 * u * (size + bound) + roundings.tiny
    before, off = _before_options(call, z, g, bound, u)
    return Exact(before, off.masked_fill(~largest.isfinite()[:, None], torch.inf))


def _direct_size(call: Operands, z: Tensor, terms: LogitGradient) -> Tensor:
    size = torch.zeros_like(z)
    w = 1.0 if call.column_weight is None else call.column_weight[: call.valid_vocab].double().abs()
    if terms.column is not None:
        size = size + terms.column.abs() * w
    if terms.dense is not None:
        assert call.dense is not None
        size = size + terms.dense.abs() * w * call.dense[:, : call.valid_vocab].double().abs()
    if terms.target is not None:
        assert call.target is not None
        size.scatter_add_(1, call.target[:, None], terms.target.abs())
    return size


def _through_exp(
    call: Operands, z: Exact, largest: Tensor, terms: LogitGradient, u: float
) -> tuple[Tensor, Tensor, ExpTerms]:
    """The terms with exp, without the filter; their bounds; exp itself."""
    flat = LogitGradient(*(None if each is None else each[:, 0] for each in (terms.exp, terms.slope, terms.center)))
    value = reference.logit_gradient(call, z.value, largest, flat)
    d = exp_terms(z, largest, 0.0, 0, u)
    first = torch.zeros_like(largest)[:, None] if terms.exp is None else terms.exp.abs()
    slope = torch.zeros_like(first) if terms.slope is None else terms.slope.abs()
    size = first + slope * d.distance
    off = d.of_exp * (size + slope * d.of_distance) + d.exp * (slope * d.of_distance + 4 * u * size)
    if terms.center is not None:
        assert call.dense is not None
        factor = call.dense[:, : call.valid_vocab].double().abs() + terms.center.abs()
        off = factor * (off + 4 * u * d.exp * size)
    return value, off, d


def _before_options(call: Operands, z: Exact, g: Tensor, bound: Tensor, u: float) -> tuple[Tensor, Tensor]:
    before = reference.before_options(call, z.value, g)
    t = 1.0 if call.temperature is None else wide(call.temperature)[:, None]
    g, bound = g / t, bound / t
    if call.softcap is not None:
        x = (z.value * t / call.softcap).clamp(-1.0, 1.0)
        of_x = z.bound * t / call.softcap + 4 * u
        factor = (1.0 - x) * (1.0 + x)
        off = 2 * of_x + of_x.square() + 4 * u
        g, bound = g * factor, bound * (factor + off) + g.abs() * off
    return before, (bound + 4 * u * (g.abs() + bound)) * abs(call.scale)


class _ProductSum:
    """A sum of products, some terms at a time, and its bound."""

    def __init__(self, roundings: Roundings, terms: int) -> None:
        self.roundings = roundings
        self.terms = terms  # in all, of each sum
        coarse = roundings.of_gradient + roundings.operand
        self.rounded = roundings.product(terms) + coarse + coarse**2 + 2 * roundings.result
        self.value = self.of_value = self.size = self.flushed = torch.zeros((), dtype=torch.float64, device="cpu")

    def add(
        self,
        g: Exact,  # [R, k]
        factor: Tensor,  # [k, H]
    ) -> None:
        of_g, of_factor = sizes(g.value) + g.bound, sizes(factor)
        self.value = self.value + g.value @ factor
        self.of_value = self.of_value + g.bound @ of_factor
        self.size = self.size + of_g @ of_factor
        self.flushed = self.flushed + of_g.sum(dim=1)[:, None] + of_factor.sum(dim=0)  # operands below `tiny`

    def exact(self) -> Exact:  # [R, H]
        bound = self.of_value + self.rounded * self.size + self.roundings.tiny * (self.flushed + self.terms + 4)
        # With a gradient filter a kernel may leave out a product of 0 and something infinite.
        is_known = self.value.isfinite() & (self.size < self.roundings.most)
        return Exact(self.value, torch.where(is_known, bound, torch.inf))


def input_gradient(
    call: Operands, z: Exact, largest: Tensor, terms: LogitGradient, roundings: Roundings
) -> Exact:  # [N, H]
    """The gradient of each row of input, of a call on the CPU with all of its columns."""
    g = _logit_gradients(call, z, largest, terms, roundings, all_columns=True)
    products = _ProductSum(roundings, call.valid_vocab)
    for part in slices(call.valid_vocab, call.weight.shape[1]):
        products.add(Exact(g.value[:, part], g.bound[:, part]), wide(call.weight[part]))
    return products.exact()


def column_gradients(
    call: Operands, largest: Tensor, terms: LogitGradient, roundings: Roundings
) -> tuple[Exact, Exact]:  # [V, H], [V]
    """The gradients of rows of weight and of elements of bias, of a call on the CPU with all of its rows."""
    of_weight, of_bias = _ProductSum(roundings, call.size), _ProductSum(roundings, call.size)
    for part in slices(call.size, call.weight.shape[1]):
        rows = call.rows(part.start, part.stop)
        z = logits(rows, roundings)
        some = LogitGradient(*(None if each is None else each[part] for each in terms))
        g = _logit_gradients(rows, z, largest[part], some, roundings, all_columns=False)
        turned = Exact(g.value.T, g.bound.T)
        of_weight.add(turned, wide(rows.input))
        of_bias.add(turned, torch.ones(rows.size, 1, dtype=torch.float64, device="cpu"))
    bias = of_bias.exact()
    return of_weight.exact(), Exact(bias.value[:, 0], bias.bound[:, 0])
