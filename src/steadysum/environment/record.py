"""What this machine is and what is installed on it, as far as it bears on bits and faults: one document, facts alone.

Schema `steadysum.environment/1`. Additions keep the number; a changed or removed key raises it. Keys:

    schema       "steadysum.environment/1"
    components   {name: {version, where}}: version is null where there is none, and `where` then says what was looked
                 for in vain; else which file, module or command says so
    machine      {architecture, processor, cpus, usable_cpus, torch_capability, native_isa, system, release}
    threads      {torch, interop}
    switches     {name: value}: switches on equal results as determinism.py reads them; null: not set
    runtimes     [{kind, vendor, path}]: OpenMP and BLAS libraries that are loaded; null where the system doesn't say

It names no user, no host and no folder of the user's: it goes into evidence that is passed on. Nothing is imported that
the process hasn't imported already, and no device is woken up.
Not here: what a version means (rules.py), and whether two records agree (lock.py).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping
from typing import Any, Final

import torch

from steadysum import _extension
from steadysum.environment import gpu, vendor
from steadysum.environment.determinism import read_switches
from steadysum.environment.machine import processor_model, usable_cpus, without_home
from steadysum.environment.runtimes import loaded_runtimes
from steadysum.environment.vendor import Found

__all__ = ["NAMES", "PACKAGES", "SCHEMA", "components", "environment_record", "environment_record_by_tools", "package"]

SCHEMA: Final = "steadysum.environment/1"

# Packages whose version bears on a result: the framework, compilers of kernels, and what the loss of a language model
# is often computed by.
PACKAGES: Final = (
    "numpy",
    "triton",
    "torch-npu",
    "transformers",
    "liger-kernel",
    "cut-cross-entropy",
    "flash-attn",
    "deepspeed",
    "vllm",
    "vllm-ascend",
)
_OF_TORCH: Final = ("torch", "torch-build", "mkl", "onednn", "cudnn", "nccl")
NAMES: Final = ("steadysum", "native", "python", *_OF_TORCH, *PACKAGES, *gpu.NAMES, *vendor.NAMES)

# In the text that torch has of its own build.
_MKL: Final = re.compile(r"Math Kernel Library Version (\d[\w.]*)")
_ONEDNN: Final = re.compile(r"MKL-DNN v(\d[\w.]*)")


def environment_record() -> dict[str, Any]:
    """The environment, from files and from what is loaded: it takes milliseconds, and starts no other program.

    Returns:
        A document that json can write, with the keys above.

    >>> environment_record()["components"]["torch"]["version"] == torch.__version__
    True
    """
    return _document(components(vendor.vendor_versions()))


def environment_record_by_tools() -> dict[str, Any]:
    """The same, and what the vendor's tools say of the NPU: it takes seconds where there is one."""
    return _document(components(vendor.vendor_versions_by_tool()))


def components(of_vendor: Mapping[str, Found]) -> dict[str, Found]:
    """Every component, by name.

    Args:
        of_vendor: of the NPU, from vendor.py.

    Returns:
        One for each of NAMES.
    """
    found = {
        "steadysum": package("steadysum"),
        "native": _native(),
        "python": Found(platform.python_version(), platform.python_implementation()),
        **_of_torch(),
        **{name: package(name) for name in PACKAGES},
        **gpu.gpu_versions(),
        **of_vendor,
    }
    return {name: found[name] for name in NAMES}


def package(name: str) -> Found:
    """A Python package, as installed; it isn't imported.

    >>> package("no-such-package")
    Found(version=None, where='not installed')
    """
    try:
        return Found(importlib.metadata.version(name), f"package {name}")
    except importlib.metadata.PackageNotFoundError:
        return Found(None, "not installed")


def _document(found: Mapping[str, Found]) -> dict[str, Any]:
    native, runtimes = _extension.module, loaded_runtimes()
    return {
        "schema": SCHEMA,
        "components": {
            name: {"version": each.version, "where": without_home(each.where)} for name, each in found.items()
        },
        "machine": {
            "architecture": platform.machine(),
            "processor": processor_model(),
            "cpus": os.cpu_count(),
            "usable_cpus": usable_cpus(),
            "torch_capability": torch.backends.cpu.get_cpu_capability(),
            "native_isa": None if native is None else native.isa(),
            "system": platform.system(),
            "release": platform.release(),
        },
        "threads": {"torch": torch.get_num_threads(), "interop": torch.get_num_interop_threads()},
        "switches": {reading.name: reading.value for reading in read_switches(frozenset())},
        "runtimes": None if runtimes is None else [runtime._asdict() for runtime in runtimes],
    }


def _native() -> Found:
    native = _extension.module
    if native is None:
        return Found(None, _extension.reason)
    return Found(native.__version__, "steadysum._native")


def _of_torch() -> dict[str, Found]:
    built = torch.__config__.show()
    return {
        "torch": Found(torch.__version__, "torch.__version__"),
        "torch-build": Found(_built_for(), "torch.version"),
        "mkl": _said(_MKL, built),
        "onednn": _said(_ONEDNN, built),
        "cudnn": _cudnn(),
        "nccl": _nccl(),
    }


def _built_for() -> str:
    """The platform; torch calls that of AMD "cuda", too."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"


def _said(pattern: re.Pattern[str], built: str) -> Found:
    matched = pattern.search(built)
    where = "torch.__config__.show()"
    return Found(None, f"not in {where}") if matched is None else Found(matched[1], where)


def _cudnn() -> Found:
    """torch has it as one number: 90100 is 9.1.0, and 8902, of the versions before 9, is 8.9.2."""
    try:
        number: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    except RuntimeError as error:  # the one installed doesn't fit the one that torch was built with
        return Found(None, str(error).splitlines()[0])
    if number is None:
        return Found(None, "not in this build of torch")
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return Found(f"{major}.{rest // 100}.{rest % 100}", "torch.backends.cudnn.version()")


def _nccl() -> Found:
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return Found(None, "not in this build of torch")
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return Found(".".join(map(str, version)), "torch.cuda.nccl.version()")
