"""Arithmetic that several kernels share: a block of a product, exponentials, tanh.

Not here: which values they are applied to, and in which order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from steadysum.kernels.triton_code.mode import IS_INTERPRETED

__all__ = ["capped", "exp_of_difference", "multiply_add", "published_exp"]


@triton.jit
def multiply_add(left: tl.tensor, right: tl.tensor, total: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """total + left @ right, for [R, K], [K, C] and [R, C] in fp32.

    Interpreted, the products, exact in fp64, are added up there in ascending order of k, element by element, and their
    sum is rounded: numpy's own product gives a row different bits at different places of a block (measured), and no
    right ones for bf16, which numpy doesn't know; a sum in fp32 would round every product besides, as no device does.
    """
    if IS_INTERPRETED:
        products = left.to(tl.float64)[:, :, None] * right.to(tl.float64)[None, :, :]
        return total + tl.sum(products, axis=1).to(tl.float32)
    return tl.dot(left, right, total, input_precision=PRECISION)


@triton.jit
def exp_of_difference(own: tl.tensor, largest: tl.tensor) -> tl.tensor:
    """exp(own - largest), with 1 where they are equal: this settles -inf against -inf and +inf against +inf."""
    return tl.where(own == largest, 1.0, tl.exp(own - largest))


@triton.jit
def published_exp(x: tl.tensor) -> tl.tensor:
    """exp for x <= 0 with the bits of docs/bits.md: fused multiply-adds, the same on every device."""
    t = tl.fma(x, 1.4426950216293335, 12583039.0)
    n = t - 12583039.0
    r = tl.fma(n, -0.693145751953125, x)
    r = tl.fma(n, -1.428606765330187e-06, r)
    q = tl.fma(r, 0.0013814467238262296, 0.0083687799051404)
    q = tl.fma(q, r, 0.04166839271783829)
    q = tl.fma(q, r, 0.1666651964187622)
    q = tl.fma(q, r, 0.4999999403953552)
    p = tl.fma(q, r, 1.0)
    p = tl.fma(p, r, 1.0)
    power = (t.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < -87.30000305175781, 0.0, p * power)


@triton.jit
def capped(z: tl.tensor, softcap: tl.tensor) -> tl.tensor:
    """softcap * tanh(z / softcap), by the formulas of docs/bits.md in the device's own operations."""
    x = tl.div_rn(z, softcap)
    y = x * x
    near = 0.020616015419363976 + y * -0.005664796102792025
    near = -0.053738631308078766 + y * near
    near = 0.13331541419029236 + y * near
    near = -0.33333292603492737 + y * near
    near = x + x * y * near
    e = tl.exp(tl.abs(x) * -2.0)
    far = tl.div_rn(1.0 - e, 1.0 + e)
    return softcap * tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0.0, -far, far))
