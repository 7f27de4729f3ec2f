"""reproduce.py of a bundle runs without steadysum, and shows the deviation that the bundle was written for."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

import steadysum
from steadysum.guard import bundle_exact, reproduce_script
from steadysum.guard.bundle import BundleStore, Evidence
from steadysum.guard.checks.protocol import Finding

# A user's module: a layer that leaves out the contribution of a tile in every fourth call, as in FAULTS.md ("dropped").
USERS = """
import torch

calls = 0

def flaky(x, w):
    global calls
    calls += 1
    out = x @ w.T
    if calls % 4 == 0:
        out[3] -= x[3, :2] @ w[:, :2].T
    return out

def broken(x, w):
    out = x @ w.T
    out[3] -= x[3, :2] @ w[:, :2].T
    return out

def right(x, w):
    return x @ w.T

def eats_its_input(x, w):
    out = x @ w.T
    x.zero_()
    return out

def raises(x, w):
    raise ValueError("no \\x1b[31m such thing")

class Guarded:
    guarded = staticmethod(broken)
    def __call__(self, x, w):
        return right(x, w)

protected = Guarded()
number = 3

def make_layer():
    return torch.nn.Sequential(torch.nn.Linear(8, 6))
"""


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def w() -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def broken(x: Tensor, w: Tensor) -> Tensor:
    out = x @ w.T
    out[3] -= x[3, :2] @ w[:, :2].T
    return out


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, x: Tensor, w: Tensor) -> Write:
    """Writes a bundle of a transient fault of `x @ w.T`, or another one."""
    (tmp_path / "users.py").write_text(USERS)

    def write(**changes: Any) -> Path:
        made = Evidence(
            operator="layer",
            import_path="users:flaky",
            args=(x, w),
            kwargs={},
            outputs={"deviating": broken(x, w), "rerun": x @ w.T},
            findings=(Finding("checksum", False, "row 3 is off by 2.1"),),
            attribution="transient",
            settings={},
        )
        path = BundleStore(tmp_path / "bundles").write(made._replace(**changes))
        assert path is not None
        return path

    return write


def in_a_process(bundle: Path, *arguments: str, blocked: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs reproduce.py where the user's module is; steadysum can't be imported where it is blocked."""
    block = "import sys; sys.modules['steadysum'] = None\n" if blocked else ""
    # As `python BUNDLE/reproduce.py` does it: the bundle's folder is where neighbours are imported from.
    program = f"{block}import runpy, sys; sys.path[0] = sys.argv[1]; sys.argv[:2] = [sys.argv[1] + '/reproduce.py']\n"
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, str(bundle), *arguments],
        cwd=bundle.parent.parent,
        env=environment,
        capture_output=True,
        text=True,
    )


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The same within this process, which is faster."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users", raising=False)

    def run(bundle: Path, *arguments: str) -> tuple[int, str]:
        code = reproduce_script.main(arguments, bundle)
        return code, capsys.readouterr().out

    return run


# In a process of its own, without steadysum


def test_a_bundle_shows_its_deviation_without_steadysum(write: Write) -> None:
    done = in_a_process(write(), "--runs", "20")
    assert done.returncode == 1, done.stderr
    assert "checksum: row 3 is off by 2.1" in done.stdout
    assert "saved       deviating against rerun: 1 rows deviate, largest difference" in done.stdout
    assert re.search(r"at output\[3, \d\]", done.stdout)
    assert "runs        5 of 20 deviate: 25 % (95 %: 8.66 to 49.1 %)" in done.stdout  # as R's binom.test(5, 20)
    assert "5 have the values of the saved deviating output" in done.stdout
    assert done.stdout.endswith("FAIL\n")


def test_a_bundle_runs_by_its_own_path_as_a_user_starts_it(write: Write) -> None:
    bundle = write(import_path="users:broken")
    command = [sys.executable, str(bundle / "reproduce.py"), "--runs", "3"]
    done = subprocess.run(command, cwd=bundle.parent.parent, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "3 of 3 deviate" in done.stdout


def test_steadysums_own_operator_is_run_and_compared_with_float64(write: Write, x: Tensor, w: Tensor) -> None:
    good = steadysum.linear_max_sum(x, w, scale=0.5)
    bad = good._replace(sum_exp=good.sum_exp - torch.tensor([0.0, 0.01, 0.0, 0.0, 0.0]))
    bundle = write(
        operator="linear_max_sum",
        import_path="steadysum:linear_max_sum",
        kwargs={"scale": 0.5},
        outputs={"deviating": bad},
        attribution="unknown",
    )
    done = in_a_process(bundle, "--runs", "3", blocked=False)
    assert done.returncode == 0, done.stderr
    line = next(each for each in done.stdout.splitlines() if each.startswith("float64"))
    found = re.fullmatch(
        r"float64     saved deviating: 1 rows deviate, largest difference (\S+) at output.1\[1\]", line
    )
    assert found is not None, line
    assert float(found[1]) == pytest.approx(0.01, abs=1e-5)
    assert "runs        0 of 3 deviate: 0 % (95 %: 0 to 70.8 %)" in done.stdout
    assert done.stdout.endswith("PASS\n")


# In this process


def test_another_function_can_be_named(write: Write, run: Run) -> None:
    code, text = run(write(), "--function", "users:right")
    assert code == 0
    assert "0 of 100 deviate: 0 % (95 %: 0 to 3.62 %)" in text


def test_a_guarded_function_is_run_unguarded(write: Write, run: Run) -> None:
    code, text = run(write(import_path="users:protected"))
    assert code == 1
    assert "100 of 100 deviate" in text


def test_every_run_gets_its_own_inputs(write: Write, run: Run) -> None:
    assert run(write(import_path="users:eats_its_input"), "--runs", "3")[0] == 0


def test_a_deviation_below_the_tolerance_is_judged_by_values(write: Write, run: Run, x: Tensor, w: Tensor) -> None:
    off_by_one = torch.nextafter(x @ w.T, torch.tensor(math.inf))
    bundle = write(import_path="torch:matmul", args=(x, w.T), outputs={"deviating": off_by_one, "rerun": x @ w.T})
    code, text = run(bundle, "--runs", "3")
    assert code == 0
    assert "saved       deviating against rerun: 5 rows deviate" in text
    code, text = run(bundle, "--runs", "3", "--rtol", "0", "--atol", "0")
    assert code == 0


def test_where_nothing_right_is_known_the_wrong_output_again_is_the_failure(write: Write, run: Run) -> None:
    bundle = write(attribution="undecided", outputs={"deviating": broken(*example())}, import_path="users:broken")
    assert run(bundle)[0] == 1
    assert run(bundle, "--function", "users:right")[0] == 0


def test_where_every_way_gave_the_same_the_operator_is_not_called_wrong(write: Write, run: Run) -> None:
    outputs = {name: broken(*example()) for name in ("deviating", "rerun", "fallback")}
    bundle = write(attribution="application", outputs=outputs, import_path="users:broken")
    code, text = run(bundle, "--runs", "3")
    assert code == 0
    assert "not at fault the operator: every way gave the saved output; look at the check, and at the inputs" in text
    assert "runs        0 of 3 deviate" in text
    assert text.endswith("PASS\n")
    assert run(bundle, "--runs", "3", "--function", "users:right")[0] == 1  # which isn't what every way gave


@pytest.mark.parametrize("attribution", ["application", "undecided"])
def test_where_float64_knows_better_than_the_check_it_is_the_check(write: Write, run: Run, attribution: str) -> None:
    x, w = example()
    outputs = {"deviating": nn.functional.linear(x, w)}
    bundle = write(attribution=attribution, outputs=outputs, import_path="torch.nn.functional:linear")
    code, text = run(bundle, "--runs", "3")
    assert code == 0
    assert "not at fault the operator: the saved output is right up to rounding" in text
    wrong = write(
        attribution=attribution, outputs={"deviating": broken(x, w)}, import_path="torch.nn.functional:linear"
    )
    assert "not at fault" not in run(wrong, "--runs", "3")[1]


def example() -> tuple[Tensor, Tensor]:
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    return torch.randn(5, 8, generator=generators[0]), torch.randn(6, 8, generator=generators[1])


def test_a_persistent_fault_is_held_against_the_fallback(write: Write, run: Run, x: Tensor, w: Tensor) -> None:
    outputs = {"deviating": broken(x, w), "rerun": broken(x, w), "fallback": x @ w.T}
    code, text = run(write(attribution="persistent", outputs=outputs, import_path="users:broken"))
    assert code == 1
    assert "deviating against fallback" in text


def test_a_linear_layer_is_made_from_its_state(write: Write, run: Run, x: Tensor) -> None:
    layer = nn.Linear(8, 6)
    with torch.no_grad():
        good = layer(x)
    bad = good.clone()
    bad[2, 1] += 0.1
    bundle = write(module=layer, args=(x,), import_path=None, outputs={"deviating": bad, "rerun": good})
    code, text = run(bundle, "--runs", "3")
    assert code == 0
    assert "float64     saved deviating: 1 rows deviate, largest difference 0.1 at output[2, 1]" in text
    assert "float64     saved rerun: 0 rows deviate" in text


def test_an_embedding_is_made_from_its_state(write: Write, run: Run) -> None:
    layer = nn.Embedding(10, 4)
    index = torch.tensor([[1, 2], [3, 9]])
    good = layer(index).detach()
    bad = good.clone()
    bad[1, 0] = good[0, 0]
    bundle = write(module=layer, args=(index,), import_path=None, outputs={"deviating": bad, "rerun": good})
    code, text = run(bundle, "--runs", "3")
    assert code == 0
    assert "deviating against rerun: 1 rows deviate" in text


def test_another_module_is_made_by_a_function_that_is_named(write: Write, run: Run, x: Tensor) -> None:
    layer = nn.Sequential(nn.Linear(8, 6))
    good = layer(x).detach()
    bundle = write(module=layer, args=(x,), import_path=None, outputs={"deviating": good + 1, "rerun": good})
    code, text = run(bundle)
    assert code == 2
    assert "can't run: module: got torch.nn.modules.container:Sequential" in text
    assert "Name a function without arguments that makes the module" in text
    assert run(bundle, "--function", "users:make_layer", "--runs", "3")[0] == 0


@pytest.mark.parametrize(
    ("path", "match"),
    [
        (None, "function: got none in the bundle: it can't be imported by name"),
        ("nowhere_to_be_found:f", "ModuleNotFoundError"),
        ("users:missing", "AttributeError"),
        ("users:number", "got int; allowed: something callable"),
    ],
)
def test_a_function_that_is_not_there_is_an_error_with_a_remedy(
    write: Write, run: Run, path: str | None, match: str
) -> None:
    code, text = run(write(import_path=path))
    assert code == 2
    assert match in text
    assert "--function" in text


@pytest.mark.parametrize("path", ["os:system('true')", "users", "users:flaky;import os", "users:__import__('os')"])
def test_a_path_that_is_no_path_is_not_imported(write: Write, run: Run, path: str) -> None:
    bundle = write()
    verdict = json.loads((bundle / "verdict.json").read_text())
    (bundle / "verdict.json").write_text(json.dumps({**verdict, "function": path}))
    code, text = run(bundle)
    assert code == 2
    assert "allowed: package.module:name, of identifiers" in text
    assert run(write(), "--function", path)[0] == 2


def test_a_function_that_raises_is_told_of_without_control_characters(write: Write, run: Run) -> None:
    code, text = run(write(import_path="users:raises"), "--runs", "2")
    assert code == 2
    assert "raised      2 of 2 runs, the last one ValueError: no ?[31m such thing" in text


def test_inputs_as_the_call_has_left_them_are_said(write: Write, run: Run) -> None:
    assert "as after    argument 0: the call left it so" in run(write(as_after=("argument 0",)), "--runs", "1")[1]


def test_left_out_inputs_are_said(write: Write, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write()
    verdict = json.loads((bundle / "verdict.json").read_text())
    del verdict["parts"]["inputs"]
    verdict["left_out"] = {"inputs": "too large"}
    (bundle / "verdict.json").write_text(json.dumps(verdict))
    code, text = run(bundle)
    assert code == 2
    assert "left out    inputs: too large" in text
    assert "can't run: inputs: got none saved" in text


def test_a_bundle_of_another_schema_is_refused(write: Write, run: Run) -> None:
    bundle = write()
    (bundle / "verdict.json").write_text('{"schema": "steadysum.bundle/7"}')
    code, text = run(bundle)
    assert code == 2
    assert "got schema 'steadysum.bundle/7'; allowed: 'steadysum.bundle/1'" in text


# What it computes


@pytest.mark.parametrize(("count", "runs"), [(0, 1), (0, 8), (4, 8), (8, 336), (100, 100), (1, 1000), (999, 1000)])
def test_the_interval_is_the_exact_one(count: int, runs: int) -> None:
    expected = binomtest(count, runs).proportion_ci(0.95, method="exact")
    assert reproduce_script.interval(count, runs) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_differences_know_nan_and_infinity() -> None:
    nan, inf = math.nan, math.inf

    def difference(left: list[float], right: list[float]) -> tuple[int, float]:
        found = reproduce_script.difference(torch.tensor(left), torch.tensor(right), 1e-3, 1e-5)
        return found.rows, found.largest

    assert difference([nan, inf, -inf, 1.0], [nan, inf, -inf, 1.0]) == (0, 0.0)
    assert difference([nan, 1.0], [1.0, 1.0]) == (1, inf)
    assert difference([1.0, 1.0], [1.0, nan]) == (1, inf)
    assert difference([inf], [-inf]) == (1, inf)
    assert difference([1.0], [inf]) == (1, inf)
    assert difference([1.0005, 1.5], [1.0, 1.0]) == (1, 0.5)
    assert reproduce_script.difference((), (torch.ones(1),), 0, 0).rows == 1
    assert "float64" in reproduce_script.difference(torch.ones(1).double(), torch.ones(1), 0, 0).place


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": torch.linspace(-1, 1, 700)},
    {"scale": 0.3, "softcap": 2.0},
    {"temperature": 0.7},
    {"temperature": torch.linspace(0.5, 2, 9)},
    {"valid_vocab": 650},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_right_statistics_are_within_the_bound_of_rounding_and_wrong_ones_are_not(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    x, w = torch.randn(9, 64).to(dtype), torch.randn(700, 64).to(dtype) / 8
    options = {**options, **({"bias": options["bias"].to(dtype)} if "bias" in options else {})}
    exact = bundle_exact.max_sum_in_float64(x, w, **options)
    found = steadysum.linear_max_sum(x, w, kernel="eager", **options)
    assert reproduce_script.beyond_rounding(found, exact).rows == 0
    z = (x.double() @ w.double().T)[:, : options.get("valid_vocab")]
    if not set(options) - {"valid_vocab"}:
        assert torch.allclose(exact[0][0], z.amax(1), rtol=0, atol=1e-12)
        assert torch.allclose(exact[1][0], (z - z.amax(1, keepdim=True)).exp().sum(1), rtol=1e-12)
    short = found._replace(sum_exp=found.sum_exp * 0.99)
    assert reproduce_script.beyond_rounding(short, exact).rows == 9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_right_products_are_within_the_bound_of_rounding_and_wrong_ones_are_not(dtype: torch.dtype) -> None:
    x, w, bias = (torch.randn(shape).to(dtype) for shape in ((2, 7, 300), (11, 300), (11,)))
    exact = bundle_exact.linear_in_float64(x, w, bias)
    found = nn.functional.linear(x, w, bias)
    assert reproduce_script.beyond_rounding(found, exact).rows == 0
    found[1, 3, 4] += 0.5
    assert reproduce_script.beyond_rounding(found, exact).rows == 1
