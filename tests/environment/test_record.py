"""Tests of steadysum.environment.record, and of what it asks the GPU's driver."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import steadysum
from steadysum.environment import environment_record, environment_record_by_tools, record
from steadysum.environment.gpu import gpu_versions
from steadysum.environment.record import NAMES, SCHEMA


def _version(name: str) -> str | None:
    version: str | None = environment_record()["components"][name]["version"]
    return version


def test_the_record_has_the_versions_of_this_process() -> None:
    document = json.loads(json.dumps(environment_record()))
    assert document["schema"] == SCHEMA
    assert tuple(document["components"]) == NAMES
    assert _version("steadysum") == steadysum.__version__
    assert _version("torch") == torch.__version__
    assert _version("numpy") == np.__version__
    assert _version("python") == platform.python_version()
    assert document["threads"]["torch"] == torch.get_num_threads()


def test_a_missing_component_says_what_was_looked_for(bare: Path) -> None:
    for each in environment_record()["components"].values():
        assert each["version"] or each["where"]


def test_the_record_of_files_runs_no_tool_and_the_other_does(
    tool: Callable[[str], Path], bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{bare / 'bin'}:/usr/bin:/bin")
    tool(f"touch {bare}/was-run")
    environment_record()
    assert not (bare / "was-run").exists()
    environment_record_by_tools()
    assert (bare / "was-run").exists()


def test_the_record_names_no_user_host_or_folder(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "home/Ascend/cann").mkdir(parents=True)
    (bare / "home/Ascend/cann/version.cfg").write_text("toolkit_running_version=[7.6.0.1.220:8.0.0]")
    monkeypatch.setattr(platform, "node", lambda: "a-host-of-theirs")
    monkeypatch.setenv("USER", "somebody-or-other")
    document = environment_record()
    assert document["components"]["cann"] == {"version": "8.0.0", "where": "~/Ascend/cann/version.cfg"}
    for secret in ("somebody-or-other", "a-host-of-theirs", str(bare / "home")):
        assert secret not in json.dumps(document)


def test_no_package_is_imported_for_its_version() -> None:
    before = set(sys.modules)
    environment_record()
    assert {"torch_npu", "transformers", "vllm"}.isdisjoint(set(sys.modules) - before)


def test_no_device_is_woken_up_for_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def wakes() -> bool:
        raise AssertionError("a process that has asked this can't be forked any more")

    for name in ("is_available", "device_count", "init"):
        monkeypatch.setattr(torch.cuda, name, wakes)
    environment_record()


@pytest.mark.parametrize(("number", "version"), [(90100, "9.1.0"), (8902, "8.9.2"), (91002, "9.10.2")])
def test_cudnns_number_is_read_as_its_version(monkeypatch: pytest.MonkeyPatch, number: int, version: str) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: number)
    assert _version("cudnn") == version


def test_the_products_library_is_read_from_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    built = (
        "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 2024\n  - Intel(R) MKL-DNN v3.7.1 (Git"
    )
    monkeypatch.setattr(torch.__config__, "show", lambda: built)
    assert (_version("mkl"), _version("onednn")) == ("2024.2", "3.7.1")
    monkeypatch.setattr(torch.__config__, "show", lambda: "")
    assert record.components({**_nothing_of_the_vendors()})["mkl"].where == "not in torch.__config__.show()"


def _nothing_of_the_vendors() -> dict[str, record.Found]:
    return {name: record.Found(None, "") for name in record.vendor.NAMES}


def test_nvidias_driver_is_read_from_its_own_files(write: Callable[[str, str], Path]) -> None:
    write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (dvs)\nGCC: gcc 12\n",
    )
    for number in range(2):
        write(
            f"proc/driver/nvidia/gpus/0000:0{number}:00.0/information",
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t GPU-1\nGPU Firmware: \t 570.133.20\n",
        )
    found = gpu_versions()
    assert {name: each.version for name, each in found.items()} == {
        "gpu": "NVIDIA H200",
        "gpu-driver": "570.133.20",
        "gpu-firmware": "570.133.20",
    }
    assert found["gpu"].where.endswith("2 x NVIDIA H200")


def test_a_machine_without_a_gpu_has_none(bare: Path) -> None:
    assert {each.version for each in gpu_versions().values()} == {None}
