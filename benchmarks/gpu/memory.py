"""Peak extra memory of one call on the device, above its operands and results, by torch's allocator.

What a library takes without the allocator doesn't show.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.contenders import PRODUCT, Contender, missing, title
from benchmarks.gpu.contenders import FORWARD, TRAINING, tensors
from benchmarks.gpu.device import Device
from benchmarks.gpu.times import failure
from benchmarks.high_water import AGAINST, MIB
from benchmarks.results import Measure
from benchmarks.training.contenders import forget_gradients, gradients
from steadysum.diagnosis.arguments import Shape


def measure_memory(device: Device, shape: Shape, dtype: str) -> Iterator[Measure]:
    """Each contender, forward and with gradients."""
    work = device.work(shape, dtype)

    def forward(contender: Contender) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return tensors(contender.call(work))

    def training(contender: Contender) -> tuple[Tensor, ...]:
        forget_gradients(work)
        return (*tensors(contender.call(work)), *gradients(work))

    for what, contenders, run in (
        (title(shape, dtype), [each for each in FORWARD if each is not PRODUCT], forward),
        (f"{title(shape, dtype)}, with gradients", TRAINING, training),
    ):
        for contender in contenders:
            call = functools.partial(run, contender)
            reason = missing(contender) or failure(call, device)
            forget_gradients(work)
            extra = None
            if reason is None:
                extra = device.extra_memory(call)
                reason = "" if extra is not None else "runs; memory is measured on a GPU"
                forget_gradients(work)
            yield Measure(what, contender.name, AGAINST, None if extra is None else extra / MIB, note=reason)
