"""What is true of each operator of the zoo. For tests that score a diagnosis; the product and its classifiers never
see it.

A rate is that of calls which are wrong, or hang, on shapes that can fail and under the circumstances that it names;
for two callers, of pairs of calls made at the same time; for harmless operators, of calls whose bits differ from those
of the call before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import ModuleType
from typing import Literal, NamedTuple

Shape = tuple[int, ...]
# What it takes. "rerun": the same call again. "first": the first call of a process. "two callers": at the same time.
# "dirty memory": freed memory that isn't zeros. "another shape": a call with it before. "solo": a row alone beside the
# batch. "threads": another number of threads.
Circumstance = Literal["rerun", "first", "two callers", "dirty memory", "another shape", "solo", "threads"]

HARMLESS_CAUSES = ("batch_variance", "reduction_order")


class Truth(NamedTuple):
    """One operator's."""

    cause: str  # one of the diagnosis's causes
    rate: float
    fails_from: Shape | Callable[[ModuleType], Shape]  # the smallest shape that can fail; it may depend on constants
    circumstance: Circumstance = "rerun"
    symptom: Literal["values", "hang"] = "values"
    starred: bool = False  # FAULTS.md marks it: it has to be told apart from a race

    @property
    def harmless(self) -> bool:
        """Whether it is no fault at all."""
        return self.cause in HARMLESS_CAUSES

    def smallest(self, zoo: ModuleType) -> Shape:
        """The smallest shape that can fail, with the constants that the module has drawn."""
        return self.fails_from(zoo) if callable(self.fails_from) else self.fails_from


def half(name: str) -> Literal["tune", "score"]:
    """The half that an operator belongs to: thresholds are tuned on one, and scored on the other."""
    return "tune" if hashlib.sha256(name.encode()).digest()[0] % 2 else "score"


TRUTHS: dict[str, Truth] = {
    "aiter_3515": Truth("buffer_reused", 0.1, lambda zoo: (zoo.STAGE + 1,)),
    "aorta_205": Truth("first_call", 1.0, (2, 1), circumstance="first"),
    "apex_1322": Truth("uninitialised_memory", 1.0, (1, 1), circumstance="dirty memory"),
    "deepep_621": Truth("missing_sync", 0.06, (1, 1)),
    "deepep_700": Truth("buffer_reused", 0.033, lambda zoo: (zoo.SLOTS + 1, 1)),
    "deepspeed_7898": Truth("unwaited_result", 0.08, (1, 1)),
    "fbgemm_5754": Truth("uninitialised_memory", 1.0, lambda zoo: (zoo.EMPTY, 1), circumstance="dirty memory"),
    "flashinfer_3615": Truth("dirty_workspace", 0.1, lambda zoo: (zoo.BLOCK + 1, 1)),
    "flashinfer_4476": Truth("crosstalk", 0.4, (1, 1), circumstance="two callers"),
    "flashinfer_5034": Truth("reduction_order", 0.99, (3, 1), starred=True),
    "flashinfer_5251": Truth("missing_sync", 0.05, (1, 1)),
    "nccl_2001": Truth("missing_sync", 0.3, lambda zoo: (zoo.ELEMENTS,)),
    "npu_linspace": Truth("tail", 0.2, lambda zoo: (zoo.LINE + 1,)),
    "primus_turbo_482": Truth("missing_sync", 0.875, (1, 1)),
    "pytorch_170239": Truth("unwaited_result", 0.05, (1, 1)),
    # No race of data, and starred for that; but the first call's values are worse than rounding explains.
    "pytorch_188792": Truth("first_call", 1.0, (1, 1), circumstance="first", starred=True),
    "rocm_libraries_10951": Truth("crosstalk", 0.3, (1, 1), circumstance="two callers", symptom="hang"),
    "rocm_libraries_11373": Truth("missing_sync", 0.05, (3, 1)),
    "sglang_11183": Truth("missing_sync", 0.04, (1, 1)),
    "triton_7264": Truth("reduction_order", 0.5, (3, 1), starred=True),
    "tt_metal_46190": Truth("double_buffer", 0.5, (1, 1)),
    "tt_metal_47831": Truth("reduction_order", 1.0, (3, 1), circumstance="threads", starred=True),
    "uccl_993": Truth("missing_sync", 0.07, lambda zoo: (2 * zoo.BATCH + 1, 1), symptom="hang"),
    "vllm_2760": Truth("missing_sync", 0.04, lambda zoo: (zoo.BLOCK + 1, 1)),
    "vllm_13140": Truth("missing_sync", 0.06, (1,)),
    "vllm_25279": Truth("unwaited_result", 0.12, (1, 1)),
    "vllm_36013": Truth("buffer_reused", 0.05, lambda zoo: (zoo.BLOCK + 1, 1)),
    # Two pieces of two columns each: fewer columns are added up in one order either way.
    "vllm_53257": Truth(
        "batch_variance", 1.0, lambda zoo: (zoo.FEW + 1, zoo.SPLITS + 2), circumstance="solo", starred=True
    ),
    "vllm_57059": Truth("missing_sync", 0.05, (1, 1)),
    "vllm_ascend_10276": Truth("tail", 1.0, (1, 1)),
    "vllm_ascend_12123": Truth("tail", 1.0, lambda zoo: (zoo.SMALL, zoo.COLUMNS)),
}
