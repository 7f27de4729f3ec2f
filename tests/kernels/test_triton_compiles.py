"""The triton kernels compile for GPUs, though none need be here: to machine code for NVIDIA's and AMD's devices."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "compile_triton.py"
CODE = {"cuda": "cubin", "hip": "hsaco"}
SHARED = {
    "cuda:80": 163 * 2**10,
    "cuda:90": 227 * 2**10,
    "hip:gfx942": 64 * 2**10,
}  # bytes of a block, from their manuals
MOST_PROGRAMS = 65535  # along the second and third dimension of CUDA's grids
PRODUCTS = ("_tile_partials", "_add_weight_gradient", "_leaf_products")

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton isn't installed")


def compiled(target: str, which: str, cache: Path) -> list[dict[str, object]]:
    environment = {"TRITON_CACHE_DIR": str(cache), "PATH": "/usr/bin:/bin", "HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), target, which], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    variants: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return variants


def assert_compiled(target: str, which: str, cache: Path) -> list[dict[str, object]]:
    variants = compiled(target, which, cache)
    for variant in variants:
        assert CODE[target.partition(":")[0]] in variant["code"]  # type: ignore[operator]
        assert variant["shared"] <= SHARED[target]  # type: ignore[operator]
        assert variant["widest"] <= MOST_PROGRAMS  # type: ignore[operator]
        assert not variant["atomics"], "sums would depend on the order in which programs end"
    return variants


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_training_in_16_bits_compiles_and_uses_the_matrix_units(target: str, tmp_path: Path) -> None:
    variants = assert_compiled(target, "few", tmp_path)
    by_name = {str(variant["name"]): variant for variant in variants}
    assert {*PRODUCTS, "_fold_partials", "_logit_gradient", "_softmax"} <= set(by_name)
    assert all(by_name[name]["matrix_units"] for name in PRODUCTS)


@pytest.mark.soak
@pytest.mark.parametrize("target", SHARED)
def test_every_kernel_compiles(target: str, tmp_path: Path) -> None:
    assert len(assert_compiled(target, "every", tmp_path)) >= 30
