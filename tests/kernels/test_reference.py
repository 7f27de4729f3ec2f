"""`reference` is the definition: held against sums written out in exact fractions and Python's own functions."""

from __future__ import annotations

import math

import pytest
import torch

from steadysum import linear_logprobs, linear_max_sum, linear_softmax


def test_the_reference_is_the_definition_written_out() -> None:
    x, head, bias = [0.5, -1.0, 2.0], [[1.0, 0.0, 1.0], [0.25, 2.0, -1.0], [0.0, 1.0, 1.5]], [0.5, -0.25, 1.0]
    scale, softcap, temperature, target = 0.5, 3.0, 0.8, 2
    products = [sum(a * b for a, b in zip(x, row, strict=True)) for row in head]
    z = [(p + b) * scale for p, b in zip(products, bias, strict=True)]
    z = [softcap * math.tanh(each / softcap) / temperature for each in z]
    total = sum(math.exp(each - max(z)) for each in z)
    p = [math.exp(each - max(z)) / total for each in z]

    operands = torch.tensor(x, dtype=torch.float64), torch.tensor(head, dtype=torch.float64)
    options = {"bias": torch.tensor(bias, dtype=torch.float64), "scale": scale, "softcap": softcap}
    options |= {"temperature": temperature, "kernel": "reference"}
    found = linear_max_sum(*operands, **options)
    assert found.max.item() == pytest.approx(max(z), rel=1e-15)
    assert found.sum_exp.item() == pytest.approx(total, rel=1e-15)
    assert linear_softmax(*operands, **options).tolist() == pytest.approx(p, rel=1e-14)
    logprob, entropy = linear_logprobs(*operands, torch.tensor(target), **options, return_entropy=True)
    assert logprob.item() == pytest.approx(math.log(p[target]), rel=1e-14)
    assert entropy.item() == pytest.approx(-sum(each * math.log(each) for each in p), rel=1e-14)


def test_it_rounds_once_at_the_end() -> None:
    # all logits share an offset at which fp32 has only even numbers: rounding max and target logit first loses 1
    x = torch.tensor([[4096.0, 1.0]])
    head = torch.tensor([[4096.0, 1.0], [4096.0, 0.0]])  # 2^24 + 1, 2^24
    found = linear_logprobs(x, head, torch.tensor([1]), kernel="reference")
    assert found.item() == pytest.approx(-1 - math.log1p(math.exp(-1)), rel=2.0**-24)
