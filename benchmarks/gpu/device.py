"""The GPU under measurement: its name, its clock and its peak memory; or, interpreted, the CPU in its place.

Interpreted, nothing that is measured means anything: it proves that the script's code works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.contenders import Work, make_work
from steadysum.diagnosis.arguments import Shape
from steadysum.timing import wall_clock


@dataclass(frozen=True)
class Device:
    """Where it runs."""

    interpreted: bool

    @property
    def type(self) -> str:
        """torch's name of it."""
        return "cpu" if self.interpreted else "cuda"

    def facts(self) -> dict[str, Any]:
        """What the figures depend on, for the result files."""
        if self.interpreted:
            return {"card": "none: Triton's interpreter on the CPU; the times mean nothing"}
        properties = torch.cuda.get_device_properties(0)
        return {
            "card": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "card_memory_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        }

    def work(self, shape: Shape, dtype: str) -> Work:
        """A problem's operands on the device; they want gradients."""
        work = make_work(shape, dtype)
        input, weight = (each.to(self.type).requires_grad_() for each in (work.input, work.weight))
        return Work(input, weight, work.target.to(self.type))

    def seconds(self, call: Callable[[], object]) -> float:
        """By the device's own events, so that the time is that of its work, not that of the launches."""
        if self.interpreted:
            return wall_clock(call)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()  # type: ignore[no-untyped-call]
        call()
        end.record()  # type: ignore[no-untyped-call]
        end.synchronize()  # type: ignore[no-untyped-call]
        return float(start.elapsed_time(end)) / 1e3  # type: ignore[no-untyped-call]

    def extra_memory(self, call: Callable[[], tuple[Tensor, ...]]) -> int | None:
        """Peak bytes above operands and results; None where there is no GPU to ask."""
        if self.interpreted:
            call()
            return None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = sum(each.numel() * each.element_size() for each in call())
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before - results

    def free(self) -> None:
        """Give memory back between problems."""
        if not self.interpreted:
            torch.cuda.empty_cache()
