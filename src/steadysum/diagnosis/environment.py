"""What this machine and installation look like, as far as it bears on bits and speed, in lines for a reader.

Facts only. What is known of them, and what to do, is doctor.py's business; the same as one document is a record of
environment/record.py.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

import steadysum
from steadysum import _extension, kernels
from steadysum.environment import gpu, vendor
from steadysum.environment.determinism import Reading
from steadysum.environment.machine import processor_model, usable_cpus, without_home
from steadysum.environment.runtimes import loaded_runtimes
from steadysum.environment.vendor import Found
from steadysum.kernels import triton

# Variables that change bits or speed of this package or of torch's product, and how.
VARIABLES = {
    "STEADYSUM_ISA": "forces the native kernel's instructions: avx512, avx2 or portable; no bits change",
    "TRITON_INTERPRET": "1, set before Python starts: kernel triton runs interpreted on the CPU, for tests, and slowly",
    "CUDA_VISIBLE_DEVICES": "the GPUs that this process may use",
    "ASCEND_RT_VISIBLE_DEVICES": "the NPUs that this process may use",
    "OMP_NUM_THREADS": "torch's threads, and so ours",
    "MKL_NUM_THREADS": "threads of torch's product",
    "MKL_ENABLE_INSTRUCTIONS": "limits the instructions of torch's product",
    "MKL_DYNAMIC": "lets MKL use fewer threads than asked for",
    "OPENBLAS_CORETYPE": "chooses the code path of OpenBLAS: NumPy's product, and torch's where it is built so",
    "OPENBLAS_NUM_THREADS": "threads of OpenBLAS",
    "ATEN_CPU_CAPABILITY": "limits the instructions of torch's elementwise operations",
    "ONEDNN_MAX_CPU_ISA": "limits the instructions of torch's 16-bit product",
    "KMP_AFFINITY": "binds OpenMP threads to CPUs",
    "GOMP_CPU_AFFINITY": "binds OpenMP threads to CPUs",
}


# What a kernel needs, for a user who lacks it: the doctor shows it beside the kernel's own reason.
NEEDS = {
    "native": "It needs a C++20 compiler when the package is installed: install one, then install the package again.",
    "triton": (
        "It needs the package triton (pip install 'steadysum[triton]'), and a CUDA or ROCm GPU with a build of torch "
        "for it; without a GPU, TRITON_INTERPRET=1, set before Python starts, runs it interpreted on the CPU."
    ),
    "ascend": (
        "It needs the package torch-npu of your torch's version (pip install 'steadysum[ascend]'), the vendor's CANN "
        "toolkit, and an Ascend NPU among those of ASCEND_RT_VISIBLE_DEVICES."
    ),
}

OPTIONAL_PACKAGES = {"triton": "triton", "torch-npu": "ascend"}  # name in the package index -> kernel


class Fact(NamedTuple):
    """One line of the doctor's report."""

    name: str
    value: str
    note: str = ""


def versions() -> dict[str, Any]:
    """The versions and sizes that a result belongs to."""
    native = _extension.module
    return {
        "steadysum": steadysum.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "isa": None if native is None else native.isa(),
        "torch_threads": torch.get_num_threads(),
    }


def facts(components: Mapping[str, Found], readings: Iterable[Reading]) -> dict[str, list[Fact]]:
    """All facts, by section.

    Args:
        components: of the record, from environment/record.py.
        readings: of switches, from environment/determinism.py.
    """
    return {
        "versions": _versions(),
        "processor": _processor(),
        "torch": _torch(),
        "devices": _devices(components),
        "kernels": _kernels(),
        "determinism": _determinism(readings),
        "libraries": _libraries(),
        "environment variables": _variables(),
    }


def _versions() -> list[Fact]:
    native = _extension.module
    return [
        Fact("steadysum", steadysum.__version__),
        Fact("native extension", "not available" if native is None else native.__version__, _extension.reason),
        Fact("python", platform.python_version(), platform.python_implementation()),
        Fact("torch", torch.__version__),
        Fact("numpy", np.__version__),
        *(Fact(package, _version(package), f"for kernel {kernel}") for package, kernel in OPTIONAL_PACKAGES.items()),
        Fact("system", platform.system(), platform.release()),
    ]


def _version(package: str) -> str:
    """As installed; the package isn't imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> list[Fact]:
    found = [
        Fact("architecture", platform.machine(), processor_model()),
        Fact("CPUs", str(os.cpu_count()), f"{usable_cpus()} usable by this process"),
    ]
    native = _extension.module
    if native is None:
        return found
    features = native.cpu_features()
    has = [name for name, present in features.items() if present]
    lacks = [name for name, present in features.items() if not present]
    return [
        *found,
        Fact("instructions in use", native.isa(), f"runnable here: {', '.join(native.runnable_isas())}"),
        Fact("features", " ".join(has) or "none", f"lacks: {' '.join(lacks)}" if lacks else ""),
    ]


def _torch() -> list[Fact]:
    precision = torch.get_float32_matmul_precision()
    return [
        Fact("threads", str(torch.get_num_threads()), "native uses the same number"),
        Fact("instructions", torch.backends.cpu.get_cpu_capability(), "of elementwise operations"),
        Fact("BLAS", "MKL" if torch._C.has_mkl else "not MKL"),
        Fact("fp32 product", precision, "" if precision == "highest" else "torch may round fp32 operands to 16 bits"),
        _gpu(),
    ]


def _gpu() -> Fact:
    """The platform that torch was built for, which calls both "cuda", and its devices."""
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else ""
    built_for = f"ROCm {torch.version.hip}" if torch.version.hip else built_for
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Fact("GPU", built_for or "none in this build of torch", ", ".join(devices) or "no device")


def _devices(components: Mapping[str, Found]) -> list[Fact]:
    """The vendors' software: of GPUs what there is, of NPUs also what isn't there, and where it was looked for."""
    found = {name: components[name] for name in (*gpu.NAMES, "cudnn", "nccl", *vendor.NAMES)}
    return [
        Fact(name, each.version or "not found", without_home(each.where))
        for name, each in found.items()
        if each.version is not None or name in vendor.NAMES
    ]


def _determinism(readings: Iterable[Reading]) -> list[Fact]:
    """Switches that matter here, and those that are set though they don't."""
    shown, hidden = [], 0
    for reading in readings:
        is_variable = "." not in reading.name
        if reading.matters:
            shown.append(Fact(reading.name, reading.value or "not set", reading.meaning))
        elif is_variable and reading.value is not None:
            shown.append(Fact(reading.name, reading.value, "no effect here: it is for a device that isn't here"))
        else:
            hidden += 1
    others = [Fact("others", str(hidden), "for devices that aren't here; --json has them")] if hidden else []
    return [*shown, *others]


def _libraries() -> list[Fact]:
    """OpenMP and BLAS of this process."""
    loaded = loaded_runtimes()
    if loaded is None:
        return [Fact("OpenMP, BLAS", "not known", "this system doesn't say which libraries are loaded")]
    return [Fact(runtime.kind, runtime.path, runtime.vendor) for runtime in loaded]


def _kernels() -> list[Fact]:
    found = []
    for name in kernels.names():
        kernel = kernels.get(name)
        reason = kernel.missing()
        promises = ", ".join(promise.value for promise in _in_order(kernel.promises))
        if reason is None:
            found.append(Fact(name, _available(name), f"promises: {promises}"))
        else:
            found.append(Fact(name, "not available", f"{reason.removesuffix('.')}. {NEEDS.get(name, '')}".strip()))
    return found


def _available(name: str) -> str:
    return "available, interpreted" if name == triton.name and triton.interpreted() else "available"


def _in_order(promises: frozenset[kernels.Promise]) -> list[kernels.Promise]:
    """As their type lists them."""
    return [promise for promise in kernels.Promise if promise in promises]


def _variables() -> list[Fact]:
    return [Fact(name, os.environ.get(name, "not set"), meaning) for name, meaning in VARIABLES.items()]
