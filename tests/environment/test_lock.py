"""Tests of steadysum.environment.lock: what is compared, what is an error, and files that are no lock."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steadysum.environment import environment_record, environment_record_by_tools
from steadysum.environment.lock import Difference, differences, read_lock, save_lock
from steadysum.errors import LockError

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return environment_record()


def _changed(record: dict[str, Any], section: str, name: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(record)
    changed[section][name] = {"version": value, "where": "a file"} if section == "components" else value
    return changed


def test_a_lock_that_is_saved_and_read_has_no_difference(tmp_path: Path, record: dict[str, Any]) -> None:
    save_lock(record, tmp_path / "lock.json")
    locked = read_lock(tmp_path / "lock.json")
    assert locked == record
    assert differences(locked, environment_record()) == ()


@pytest.mark.parametrize(
    "name",
    ["steadysum", "torch", "torch-npu", "cann", "npu-driver", "npu-firmware", "npu-chip", "gpu-driver", "gpu-firmware",
     "cudnn", "triton", "vllm"],
)  # fmt: skip
def test_a_difference_in_what_computes_is_an_error(record: dict[str, Any], name: str) -> None:
    locked = _changed(record, "components", name, "0.0.1")
    (difference,) = differences(locked, record)
    assert (difference.name, difference.locked, difference.is_error) == (name, "0.0.1", True)
    assert difference.here == record["components"][name]["version"]


@pytest.mark.parametrize(
    ("section", "name", "shown"),
    [
        ("components", "python", "python"),
        ("components", "numpy", "numpy"),
        ("machine", "processor", "processor"),
        ("machine", "torch_capability", "torch's instructions"),
        ("threads", "torch", "torch's threads"),
        ("switches", "HCCL_DETERMINISTIC", "HCCL_DETERMINISTIC"),
    ],
)
def test_other_differences_that_bear_on_bits_are_told(
    record: dict[str, Any], section: str, name: str, shown: str
) -> None:
    (difference,) = differences(_changed(record, section, name, "another"), record)
    assert (difference.name, difference.locked, difference.is_error) == (shown, "another", False)


@pytest.mark.parametrize(
    ("section", "name"), [("machine", "cpus"), ("machine", "usable_cpus"), ("machine", "native_isa")]
)
def test_what_bears_on_nothing_is_not_compared(record: dict[str, Any], section: str, name: str) -> None:
    assert differences(_changed(record, section, name, "another"), record) == ()


def test_neither_host_nor_time_nor_places_are_compared(tmp_path: Path, record: dict[str, Any]) -> None:
    save_lock(record, tmp_path / "lock.json")
    document = json.loads((tmp_path / "lock.json").read_text())
    document["host"], document["created"] = "another", "1999-01-01T00:00:00+00:00"
    for component in document["environment"]["components"].values():
        component["where"] = "elsewhere"
    document["environment"]["runtimes"] = None
    (tmp_path / "lock.json").write_text(json.dumps(document))
    assert differences(read_lock(tmp_path / "lock.json"), record) == ()


def test_a_component_that_is_gone_says_where_it_was_looked_for(toolkit: Path) -> None:
    locked = environment_record_by_tools()
    toolkit.unlink()
    (difference,) = differences(locked, environment_record_by_tools())
    assert difference._replace(note="") == Difference("cann", "8.5.0", None, True, "")
    assert difference.note.startswith("not here: no version below ")


def test_a_component_that_came_is_an_error(bare: Path, request: pytest.FixtureRequest) -> None:
    locked = environment_record_by_tools()
    request.getfixturevalue("toolkit")
    found = differences(locked, environment_record_by_tools())
    assert {(each.name, each.locked, each.here) for each in found} == {
        ("cann", None, "8.5.0"),
        ("npu-driver", None, "25.5.0"),
        ("npu-firmware", None, "7.8.0.5.216"),
    }
    assert all(each.is_error for each in found)


def test_errors_come_first(record: dict[str, Any]) -> None:
    locked = _changed(_changed(record, "components", "python", "3.1"), "components", "cann", "5.0")
    assert [difference.name for difference in differences(locked, record)] == ["cann", "python"]


def test_locks_of_older_and_newer_versions_are_compared_as_far_as_both_go(record: dict[str, Any]) -> None:
    older = copy.deepcopy(record)
    del older["components"]["cann"], older["switches"]["MKL_CBWR"]
    assert differences(older, record) == ()
    newer = _changed(record, "components", "quantum-driver", "1.0")
    (difference,) = differences(newer, record)
    assert (difference.is_error, difference.note) == (False, "this version of steadysum doesn't look for it")


def test_a_lock_in_a_folder_that_is_not_there_names_the_lock(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        save_lock(record, tmp_path / "no/lock.json")
    assert caught.value.filename == str(tmp_path / "no/lock.json")
    assert list(tmp_path.iterdir()) == []


def _edit(change: Change) -> Callable[[str], str]:
    def edit(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return edit


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (lambda text: text[:-20], "line "),
        (lambda _: "[]", "the schema list"),
        (lambda _: "{}", "the schema None"),
        (_edit(lambda document: document.update(schema="steadysum.lock/9")), "the schema 'steadysum.lock/9'"),
        (_edit(lambda document: document.update(environment={})), "no environment of its schema"),
        (_edit(lambda document: document["environment"].pop("switches")), "no switches in its environment"),
        (_edit(lambda document: document["environment"]["components"].update(cann="8")), "component 'cann' without a"),
        (
            _edit(lambda document: document["environment"]["components"]["torch"].pop("version")),
            "component 'torch' without a version",
        ),
    ],
)
def test_a_file_that_is_no_lock_is_refused(
    tmp_path: Path, record: dict[str, Any], spoil: Callable[[str], str], seen: str
) -> None:
    path = tmp_path / "lock.json"
    save_lock(record, path)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(LockError) as caught:
        read_lock(path)
    assert caught.value.what == f"lock {path}"
    assert seen in caught.value.seen


def test_a_lock_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"lock .*none\.json: got No such file or directory"):
        read_lock(tmp_path / "none.json")
