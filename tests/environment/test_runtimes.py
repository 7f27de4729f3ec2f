"""Tests of steadysum.environment.runtimes: libraries that are loaded, and loaded twice."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from steadysum.environment import runtimes
from steadysum.environment.runtimes import Runtime, loaded_runtimes, openmp_twice, runtimes_of

TORCHS = "/venv/lib/python3.11/site-packages/torch/lib/libgomp.so.1"
SKLEARNS = "/venv/lib/python3.11/site-packages/scikit_learn.libs/libgomp-a34b3233.so.1.0.0"
INTELS = "/opt/conda/lib/libiomp5.so"
LLVMS = "/usr/lib/llvm-18/lib/libomp.so.5"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which libraries are loaded")
def test_the_library_that_numpy_computes_with_is_found() -> None:
    assert np.ones((2, 2)) @ np.ones((2, 2)) is not None
    found = loaded_runtimes()
    assert found is not None
    assert any(runtime.kind == "BLAS" for runtime in found)
    assert any(runtime.kind == "OpenMP" for runtime in found)


@pytest.mark.parametrize(
    ("path", "kind", "vendor"),
    [
        (TORCHS, "OpenMP", "GNU"),
        (SKLEARNS, "OpenMP", "GNU"),
        (INTELS, "OpenMP", "Intel"),
        (LLVMS, "OpenMP", "LLVM"),
        ("/venv/numpy.libs/libscipy_openblas64_-32a4b2a6.so", "BLAS", "OpenBLAS"),
        ("/usr/lib/libopenblasp-r0.3.21.so", "BLAS", "OpenBLAS"),
        ("/opt/conda/lib/libmkl_rt.so.2", "BLAS", "MKL"),
        ("/usr/lib/libblas.so.3", "BLAS", "reference"),
    ],
)
def test_libraries_are_known_by_their_files(path: str, kind: str, vendor: str) -> None:
    (found,) = runtimes_of([path])
    assert (found.kind, found.vendor) == (kind, vendor)


def test_other_libraries_are_none() -> None:
    assert runtimes_of(["/usr/lib/libc.so.6", "/x/libtorch_cpu.so", "/x/libmkl_avx512.so.2", "[heap]"]) == ()


def test_a_library_counts_once_however_often_it_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = tmp_path / "maps"
    lines = [f"7f{part}000-7f{part}fff r-xp 00000000 fe:00 42   {TORCHS}" for part in range(4)]
    maps.write_text(
        "\n".join([*lines, "7ffd0000-7ffd1000 rw-p 00000000 00:00 0   [stack]", "7ffd2000-7ffd3000 rw-p 0 0:0 0"])
    )
    monkeypatch.setattr(runtimes, "MAPS", maps)
    assert loaded_runtimes() == (Runtime("OpenMP", "GNU", "torch/lib/libgomp.so.1"),)
    maps.unlink()
    assert loaded_runtimes() is None


def test_one_openmp_library_is_as_it_should_be() -> None:
    assert openmp_twice(runtimes_of([TORCHS, "/usr/lib/libopenblas.so.0"])) is None


def test_two_copies_are_told_with_their_places() -> None:
    assert openmp_twice(runtimes_of([TORCHS, SKLEARNS])) == (
        "2 OpenMP libraries are loaded, each with threads of its own: scikit_learn.libs/libgomp-a34b3233.so.1.0.0 and "
        "torch/lib/libgomp.so.1."
    )


def test_intels_beside_llvms_is_said_to_be_dangerous() -> None:
    told = openmp_twice(runtimes_of([INTELS, LLVMS]))
    assert told is not None
    assert told.endswith("Intel's beside LLVM's is known to hang and to crash.")


def test_a_library_in_the_users_home_does_not_name_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    (found,) = runtimes_of(["/home/somebody/lib/libomp.so"])
    assert found.path == "~/lib/libomp.so"
