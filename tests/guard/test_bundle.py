"""Bundles: what is written is read again, whatever it is; what is read is never executed."""

from __future__ import annotations

import builtins
import importlib
import json
import math
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import steadysum
from steadysum.errors import BundleError, BundleNotFoundError, RangeError
from steadysum.guard import bundle_content
from steadysum.guard.bundle import SCHEMA, BundleStore, Evidence, import_path_of, read_bundle
from steadysum.guard.bundle_reading import Unsaved
from steadysum.guard.checks.protocol import Finding
from steadysum.guard.tensors import same_bits
from steadysum.notices import Notice, listen

FINDING = Finding("max_sum_invariants", False, "sum_exp below 1", (3, 7), ((3, 0),), 0.5, math.inf)


def evidence(**changes: Any) -> Evidence:
    x, w = torch.randn(4, 8), torch.randn(16, 8)
    made = Evidence(
        operator="linear_max_sum",
        import_path="steadysum:linear_max_sum",
        args=(x, w),
        kwargs={"scale": 2.0, "bias": None},
        outputs={"deviating": (torch.ones(4), torch.zeros(4)), "rerun": (torch.ones(4), torch.ones(4))},
        findings=(FINDING,),
        attribution="transient",
        settings={"max_retries": 3, "tolerance": math.nan, "checks": ("finite",)},
    )
    return made._replace(**changes)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = BundleStore(tmp_path).write(evidence())
    assert path is not None
    return path


def test_a_bundle_is_a_folder_of_json_safetensors_and_programs(written: Path) -> None:
    assert sorted(each.name for each in written.iterdir()) == [
        "bundle_exact.py",
        "bundle_reading.py",
        "environment.json",
        "inputs.safetensors",
        "outputs.safetensors",
        "reproduce.py",
        "verdict.json",
    ]
    assert written.name.endswith("-linear_max_sum")


def test_a_bundle_reads_as_it_was_written(tmp_path: Path) -> None:
    given = evidence()
    path = BundleStore(tmp_path).write(given)
    assert path is not None
    found = read_bundle(path)
    assert same_bits(found.args, given.args)
    assert same_bits(found.kwargs, given.kwargs)
    assert same_bits(found.outputs, given.outputs)
    assert found.findings == given.findings
    assert (found.operator, found.import_path) == (given.operator, given.import_path)
    assert (found.attribution, found.right, found.left_out) == ("transient", "rerun", {})
    assert found.settings == {"max_retries": 3, "tolerance": "nan", "checks": ["finite"]}
    assert found.environment
    assert found.state is None


def test_nothing_that_requires_gradients_keeps_its_graph(tmp_path: Path) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    path = BundleStore(tmp_path).write(evidence(args=(x * 2,), outputs={"deviating": x * 3}))
    assert path is not None
    assert read_bundle(path).outputs["deviating"].grad_fn is None


def test_right_is_what_the_attribution_says_or_the_caller(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    outputs = {"deviating": 1, "rerun": 2, "rerun_2": 3, "fallback": 4}
    rights = [
        read_bundle(path).right
        for attribution, right in (
            ("transient", None),
            ("persistent", None),
            ("application", None),
            ("unknown", "rerun"),
        )
        if (path := store.write(evidence(attribution=attribution, right=right, outputs=outputs))) is not None
    ]
    assert rights == ["rerun_2", "fallback", None, "rerun"]


def test_json_is_sorted_strict_and_the_same_for_the_same_evidence(tmp_path: Path) -> None:
    given = evidence()
    texts = []
    for _ in range(2):
        path = BundleStore(tmp_path).write(given)
        assert path is not None
        text = (path / "verdict.json").read_text()
        verdict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        assert text == json.dumps(verdict, indent=1, sort_keys=True) + "\n"
        assert verdict.pop("schema") == SCHEMA
        for changing in ("name", "created"):
            verdict.pop(changing)
        texts.append((json.dumps(verdict), (path / "inputs.safetensors").read_bytes()))
    assert texts[0] == texts[1]


def test_a_module_is_saved_by_its_state(tmp_path: Path) -> None:
    layer = nn.Linear(8, 3).eval()
    path = BundleStore(tmp_path).write(evidence(module=layer, import_path=None))
    assert path is not None
    found = read_bundle(path)
    assert found.state is not None
    assert same_bits(found.state, dict(layer.state_dict()))
    assert found.verdict["module"] == {"class": "torch.nn.modules.linear:Linear", "training": False}


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    store = BundleStore(tmp_path, most_bytes=4 << 20)  # a bundle takes half, less 1 MiB of texts: 1 MiB of tensors
    large, small = torch.zeros(1 << 19), torch.zeros(8)
    path = store.write(
        evidence(args=(small,), outputs={"deviating": large, "rerun": small}, module=nn.Linear(1024, 1024))
    )
    assert path is not None
    found = read_bundle(path)
    assert same_bits(found.args, (small,))
    assert same_bits(found.outputs, {"rerun": small})
    assert found.state == {}
    assert sorted(found.left_out) == ["module", "outputs/deviating"]
    assert found.left_out["outputs/deviating"].startswith("2097152 bytes, of which 1048")
    path = store.write(evidence(args=(large,)))
    assert path is not None
    assert list(read_bundle(path).left_out) == ["inputs"]
    assert read_bundle(path).args == ()


def test_inputs_that_cannot_be_taken_apart_do_not_take_the_rest_with_them(tmp_path: Path) -> None:
    class Gone:
        def state_dict(self) -> None:
            raise RuntimeError("device lost")

    layer = nn.Linear(2, 2)
    layer.state_dict = Gone().state_dict  # type: ignore[method-assign, assignment]
    path = BundleStore(tmp_path).write(evidence(args=(object(), torch.ones(1)), module=layer))
    assert path is not None
    found = read_bundle(path)
    assert found.args == (Unsaved("object", "neither a tensor nor a plain value"), torch.ones(1))
    assert found.left_out == {"module": "RuntimeError: device lost"}


def test_settings_of_every_kind_become_json(tmp_path: Path) -> None:
    class Rude:
        def __str__(self) -> str:
            raise RuntimeError

    loop: dict[str, Any] = {}
    loop["self"] = loop
    settings = {
        "rude": Rude(),
        "set": {2, 1},
        "huge": 1 << 5000,
        3: float("-inf"),
        "dtype": torch.float16,
        "loop": loop,
    }
    path = BundleStore(tmp_path).write(evidence(settings=settings))
    assert path is not None
    found = read_bundle(path).settings
    assert (found["set"], found["3"], found["dtype"]) == ([1, 2], "-inf", "torch.float16")
    assert "Rude" in found["rude"]


def test_writing_posts_the_bytes(tmp_path: Path) -> None:
    seen: list[Notice] = []
    with listen(seen.append):
        path = BundleStore(tmp_path).write(evidence())
    assert path is not None
    size = sum(each.stat().st_size for each in path.iterdir())
    assert seen == [Notice("bundle", {"operator": "linear_max_sum", "outcome": "written"}, size)]


def test_an_environment_that_cannot_be_recorded_is_no_reason_to_lose_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "steadysum.environment.record", None)
    bundle_content._environment.cache_clear()
    path = BundleStore(tmp_path).write(evidence())
    bundle_content._environment.cache_clear()
    assert path is not None
    found = read_bundle(path).environment
    assert found["torch"] == torch.__version__
    assert found["note"].startswith("no full record: ModuleNotFoundError")


@pytest.mark.parametrize("arguments", [{"most": 0}, {"most_bytes": 1000}])
def test_limits_too_small_are_refused(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(RangeError, match="at least"):
        BundleStore(tmp_path, **arguments)


# Import paths


@pytest.mark.parametrize(
    ("function", "path"),
    [
        (nn.functional.linear, "torch.nn.functional:linear"),
        (torch.matmul, "torch:matmul"),
        (steadysum.linear_max_sum, "steadysum.ops.statistics:linear_max_sum"),
        (nn.Linear.forward, "torch.nn.modules.linear:Linear.forward"),
        (lambda: None, None),
        (nn.ReLU().forward, None),
        (nn.ReLU(), None),
    ],
)
def test_a_path_is_given_only_if_it_leads_back(function: Any, path: str | None) -> None:
    assert import_path_of(function) == path


def test_a_local_function_has_no_path() -> None:
    def local() -> None: ...

    assert import_path_of(local) is None


@pytest.mark.parametrize(
    "path", ["os:system('true')", "a.b", "a:b:c", "a:b;c", "a: b", "1a:b", "a:import", "a:b\nimport os", ":a", "a:", ""]
)
def test_a_name_that_is_no_path_is_not_written(tmp_path: Path, path: str) -> None:
    written = BundleStore(tmp_path).write(evidence(import_path=path))
    assert written is not None
    found = read_bundle(written)
    assert found.import_path is None
    assert found.left_out == {"function": "its name is no path of identifiers"}


def test_no_text_of_a_call_is_in_the_programs(tmp_path: Path) -> None:
    hostile = 'x"""\nimport os; os.abort()\n"""'
    written = BundleStore(tmp_path).write(evidence(operator=hostile, kwargs={hostile: hostile}, outputs={hostile: 1}))
    assert written is not None
    assert written.name.endswith("-x_import_os_os.abort")
    plain = BundleStore(tmp_path).write(evidence())
    assert plain is not None
    for name in ("reproduce.py", "bundle_reading.py", "bundle_exact.py"):
        assert (written / name).read_bytes() == (plain / name).read_bytes()
    assert read_bundle(written).operator == hostile
    assert read_bundle(written).kwargs == {hostile: hostile}


# Reading what others wrote


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever could execute what it is given fails the test."""

    def fails(*_: Any, **__: Any) -> None:
        pytest.fail("something was executed")

    for owner, name in (
        (builtins, "eval"),
        (builtins, "exec"),
        (builtins, "compile"),
        (importlib, "import_module"),
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
        (os, "system"),
    ):
        monkeypatch.setattr(owner, name, fails)


def changed(path: Path, change: dict[str, Any]) -> None:
    """Sets keys of verdict.json, by dotted path."""
    verdict = json.loads((path / "verdict.json").read_text())
    for dotted, value in change.items():
        *keys, last = dotted.split(".")
        target = verdict
        for key in keys:
            target = target[int(key)] if isinstance(target, list) else target[key]
        target[last] = value
    (path / "verdict.json").write_text(json.dumps(verdict))


def test_reading_a_good_bundle_executes_nothing(written: Path, nothing_runs: None) -> None:
    assert read_bundle(written).operator == "linear_max_sum"


TENSOR = "parts.inputs.tensors.args/0"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"schema": "steadysum.bundle/2"}, r"schema 'steadysum.bundle/2'; allowed: 'steadysum.bundle/1'. Read it with"),
        ({"schema": None}, "schema 'None'"),
        ({"function": "os:system('true')"}, "package.module:name"),
        ({"function": ["os"]}, "package.module:name"),
        ({"findings": [{"check": "x"}]}, "those of this schema"),
        ({"findings": 3}, "those of this schema"),
        ({"parts": []}, "no parts"),
        ({"parts.inputs": 3}, "no skeleton and tensors"),
        ({"parts.inputs.skeleton": {"kind": "reduce", "value": ["os.system", "true"]}}, "kinds of this schema"),
        ({"parts.inputs.skeleton": {"kind": "tensor", "path": "nowhere"}}, "kinds of this schema"),
        ({"parts.inputs.skeleton": {"kind": "dict", "items": [[{"kind": "list", "items": []}, 3]]}}, "kinds of this"),
        ({"parts.inputs.skeleton": {"kind": "value", "value": {"a": 1}}}, "kinds of this schema"),
        ({"parts.inputs.skeleton": {"kind": "device", "value": "import os"}}, "kinds of this schema"),
        ({"parts.inputs.skeleton": {"kind": "list", "items": []}}, "a dict"),
        ({f"{TENSOR}.stored": "../../../etc/passwd"}, "a tensor of that file"),
        ({f"{TENSOR}.dtype": "load"}, "dtype 'load'"),
        ({f"{TENSOR}.dtype": "complex128"}, "within the 128 that are stored"),
        ({f"{TENSOR}.shape": [4, 9]}, "within the 128 that are stored"),
        ({f"{TENSOR}.offset": 1}, "within the 128 that are stored"),
        ({f"{TENSOR}.offset": -1}, "integers >= 0"),
        ({f"{TENSOR}.stride": [-8, 1]}, "integers >= 0"),
        ({f"{TENSOR}.stride": [8]}, "integers >= 0"),
        ({f"{TENSOR}.shape": [1e9, 1]}, "integers >= 0"),
        ({f"{TENSOR}.shape": [1 << 61, 1 << 61], f"{TENSOR}.stride": [0, 0]}, "within the 128 that are stored"),
        ({f"{TENSOR}.shape": "99"}, "integers >= 0"),
        ({f"{TENSOR}.device": 3}, "text"),
    ],
)
def test_a_verdict_that_is_not_as_it_has_to_be_is_refused(
    written: Path, change: dict[str, Any], match: str, nothing_runs: None
) -> None:
    changed(written, change)
    with pytest.raises(BundleError, match=match):
        read_bundle(written)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": NaN}', "[" * 100_000, '{"a": ' + "9" * 10_000 + "}", "\udcff"])
def test_text_that_is_no_json_object_is_refused(written: Path, text: str, nothing_runs: None) -> None:
    (written / "verdict.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BundleError, match="a JSON object"):
        read_bundle(written)


def test_a_deeply_nested_skeleton_is_refused(written: Path) -> None:
    node: dict[str, Any] = {"kind": "value", "value": 1}
    for _ in range(100):
        node = {"kind": "list", "items": [node]}
    changed(written, {"parts.inputs.skeleton": node})
    with pytest.raises(BundleError, match="more than 64 levels"):
        read_bundle(written)


def test_json_beyond_all_measure_is_not_read(written: Path) -> None:
    with (written / "verdict.json").open("ab") as file:
        file.truncate(65 << 20)  # sparse: it takes no space
    with pytest.raises(BundleError, match="at most 67108864"):
        read_bundle(written)


@pytest.mark.parametrize("name", ["verdict.json", "environment.json", "inputs.safetensors"])
def test_links_pipes_and_missing_files_are_refused(written: Path, name: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(written / name, elsewhere)
    with pytest.raises(BundleError, match="No such file"):
        read_bundle(written)
    (written / name).symlink_to(elsewhere)
    with pytest.raises(BundleError, match="a link, or something else that is no file"):
        read_bundle(written)
    (written / name).unlink()
    os.mkfifo(written / name)
    with pytest.raises(BundleError, match="a link, or something else that is no file"):
        read_bundle(written)


def test_a_pickle_in_place_of_tensors_is_refused(written: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save(Bomb(), written / "inputs.safetensors")
    with pytest.raises(BundleError, match="a safetensors file, whole"):
        read_bundle(written)
    (written / "inputs.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BundleError, match="a safetensors file, whole"):
        read_bundle(written)
    assert not (tmp_path / "executed").exists()


def test_a_file_that_was_cut_off_is_refused(written: Path) -> None:
    path = written / "outputs.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match="a safetensors file, whole"):
        read_bundle(written)


def test_modules_lying_in_a_bundle_are_not_imported(written: Path, tmp_path: Path) -> None:
    for name in ("torch.py", "safetensors.py", "steadysum.py", "reproduce.py", "bundle_reading.py", "conftest.py"):
        (written / name).write_text(f"import os; os.mkdir({str(tmp_path / 'executed')!r})")
    changed(written, {"function": "torch:ones"})
    assert read_bundle(written).import_path == "torch:ones"
    assert not (tmp_path / "executed").exists()


def test_tensors_are_plain_safetensors_for_other_programs(written: Path) -> None:
    found = load_file(written / "inputs.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"args/0": (4, 8), "args/1": (16, 8)}
    save_file({"args/0": found["args/0"]}, written / "inputs.safetensors")
    with pytest.raises(BundleError, match="a tensor of that file"):
        read_bundle(written)


def test_no_bundle_at_all(tmp_path: Path) -> None:
    with pytest.raises(BundleNotFoundError, match="no folder of this name"):
        read_bundle(tmp_path / "none")
    with pytest.raises(BundleError, match="No such file"):
        read_bundle(tmp_path)
