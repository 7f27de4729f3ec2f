"""Tests of steadysum.settings: where values come from, what is refused, and that nobody pays for it unasked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import strategies as some

from steadysum.errors import SettingsError
from steadysum.settings import CONFIG, POLICIES, PROFILE, PROFILES, Origin, Settings, resolve, where_from
from steadysum.settings_file import lines_of_section
from steadysum.sync import policies

DEFAULTS = {
    "sync_wait_timeout": 2000.0,  # R15
    "allreduce_policy": 1,
    "enable_async": True,
    "max_retries": 3,  # R24
    "heartbeat_interval": 500.0,
}


@pytest.fixture(autouse=True)
def _no_settings_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*DEFAULTS, "config", "profile"):
        monkeypatch.delenv(f"STEADYSUM_{name.upper()}", raising=False)


def ini(folder: Path, text: str) -> Path:
    path = folder / "ge.ini"
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_field_report() -> None:
    assert Settings().model_dump() == DEFAULTS


def test_policies_have_their_names_and_numbers() -> None:
    assert POLICIES == policies.POLICIES
    for number, name in enumerate(policies.POLICIES):
        assert Settings(allreduce_policy=name) == Settings(allreduce_policy=number)
        assert Settings(allreduce_policy=number).policy == name


def test_settings_cannot_be_changed_and_can_be_keys() -> None:
    settings = Settings()
    with pytest.raises(Exception, match="frozen"):
        settings.max_retries = 1
    assert {settings: 1}[Settings()] == 1


def test_the_environment_gives_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYSUM_SYNC_WAIT_TIMEOUT", "1500.5")
    monkeypatch.setenv("STEADYSUM_ALLREDUCE_POLICY", "verified")
    monkeypatch.setenv("STEADYSUM_ENABLE_ASYNC", "false")
    monkeypatch.setenv("STEADYSUM_REQUIRE_NATIVE", "1")  # somebody else's
    found = Settings()
    assert (found.sync_wait_timeout, found.allreduce_policy, found.enable_async) == (1500.5, 2, False)


def test_arguments_come_before_the_environment_and_that_before_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = ini(tmp_path, "[GE]\nmax_retries = 7\nallreduce_policy = 3\n")
    monkeypatch.setenv("STEADYSUM_MAX_RETRIES", "5")
    assert Settings(max_retries=4).max_retries == 4
    assert Settings.from_ini(path).max_retries == 5
    assert Settings.from_ini(path).allreduce_policy == 3


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("training", {"sync_wait_timeout": 3000.0}),
        ("inference", {"allreduce_policy": 2}),
        ("batch", {"enable_async": False}),
    ],
)
def test_profiles_are_those_of_the_field_report(name: str, changes: dict[str, Any]) -> None:
    assert Settings.profile(name).model_dump() == {**DEFAULTS, **changes}
    assert Settings.profile(name, max_retries=0).model_dump() == {**DEFAULTS, **changes, "max_retries": 0}


def test_a_profile_can_be_changed_in_what_it_sets() -> None:
    assert Settings.profile("training", sync_wait_timeout=4000).sync_wait_timeout == 4000.0
    assert set(PROFILES) == {"training", "inference", "batch"}


def test_the_field_reports_file_is_read(tmp_path: Path) -> None:
    text = "; of the vendor's tool\n[OTHER]\nlevel = 3\n[GE]\nsync_wait_timeout=2500 ; ms\nAllreduce_Policy: enhanced\n"
    found = Settings.from_ini(ini(tmp_path, text))
    assert found.model_dump() == {**DEFAULTS, "sync_wait_timeout": 2500.0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sync_wait_timeout": 0}, "sync_wait_timeout: got 0; allowed: milliseconds, a finite number > 0\\."),
        ({"sync_wait_timeout": float("inf")}, "sync_wait_timeout: got inf"),
        ({"sync_wait_timeout": float("nan")}, "sync_wait_timeout: got nan"),
        ({"sync_wait_timeout": "soon"}, "sync_wait_timeout: got 'soon'"),
        ({"sync_wait_timeout": True}, "sync_wait_timeout: got True"),
        ({"heartbeat_interval": -1}, "heartbeat_interval: got -1"),
        (
            {"allreduce_policy": 4},
            "allreduce_policy: got 4; allowed: 0 to 3, or legacy, enhanced, verified, duplicated",
        ),
        ({"allreduce_policy": "strict"}, "allreduce_policy: got 'strict'"),
        ({"allreduce_policy": True}, "allreduce_policy: got True"),
        ({"enable_async": "perhaps"}, "enable_async: got 'perhaps'; allowed: true or false"),
        ({"max_retries": 101}, "max_retries: got 101; allowed: an integer from 0 to 100"),
        ({"max_retries": -1}, "max_retries: got -1"),
        ({"max_retries": 1.5}, "max_retries: got 1.5"),
        ({"max_retrys": 1}, "setting: got 'max_retrys'; allowed: sync_wait.*The nearest known name is max_retries\\."),
    ],
)
def test_wrong_values_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(**given)


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"profile: got 'train'; allowed: training, inference, batch.*is training"):
        Settings.profile("train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[GE]\nsync_wait_time = 1\n",
            "setting in .*ge.ini, line 2, section \\[GE\\]: got 'sync_wait_time'.*is sync_wait_timeout\\.",
        ),
        ("[GE]\nsync_wait_timeout = -5\n", "sync_wait_timeout in .*ge.ini, line 2: got '-5'; allowed: milliseconds"),
        ("; 1\n[A]\nmax_retries = 1\n\n[GE]\n# 6\n\nMax_Retries =\n", "max_retries in .*ge.ini, line 8: got ''"),
        ("[DEFAULT]\nmax_retries = 1\nx = 2\n[GE]\nmax_retries = 3\n", "ge.ini, line 3, section.*got 'x'"),
        (
            "[ge]\nmax_retries = 1\n",
            "settings file .*ge.ini: got \\[ge\\]; allowed: an INI file with a section \\[GE\\]",
        ),
        ("", "settings file .*: got no section"),
        ("max_retries = 1\n", "settings file .*: got File contains no section headers"),
        ("[GE]\nmax_retries = 1\nmax_retries = 2\n", "settings file .*line *3.*option 'max_retries' .* already exists"),
        ("[GE]\nmax_retries = 1\nnonsense\n", "settings file .*line *3.*nonsense"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_ini(ini(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"settings file .*nowhere.ini: got No such file or directory"):
        Settings.from_ini(tmp_path / "nowhere.ini")
    (tmp_path / "binary.ini").write_bytes(b"\xff\xfe[GE]\n")
    with pytest.raises(SettingsError, match=r"settings file .*binary.ini: got 'utf-8' codec can't decode"):
        Settings.from_ini(tmp_path / "binary.ini")


EVERYWHERE = """
[GE]
sync_wait_timeout = 1
allreduce_policy = verified
max_retries = 3
"""


def test_each_source_comes_before_those_after_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = ini(tmp_path, EVERYWHERE)
    monkeypatch.setitem(PROFILES, "all", dict.fromkeys(("sync_wait_timeout", "heartbeat_interval", "max_retries"), 70))
    monkeypatch.setenv("STEADYSUM_MAX_RETRIES", "5")
    monkeypatch.setenv("STEADYSUM_SYNC_WAIT_TIMEOUT", "6")
    expected = {
        "sync_wait_timeout": Origin(9.0, "argument", ""),
        "allreduce_policy": Origin(2, "file", f"{path}, line 4"),
        "enable_async": Origin(True, "default", ""),
        "max_retries": Origin(5, "environment", "STEADYSUM_MAX_RETRIES"),
        "heartbeat_interval": Origin(70.0, "profile", "all"),
    }
    assert where_from({"sync_wait_timeout": 9}, config=path, profile="all") == expected
    found = resolve({"sync_wait_timeout": 9}, config=path, profile="all")
    assert found.model_dump() == {name: origin.value for name, origin in expected.items()}


def test_variables_name_a_file_and_a_profile_and_arguments_come_before_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = ini(tmp_path, "[GE]\nmax_retries = 7\n")
    monkeypatch.setenv(CONFIG, str(path))
    monkeypatch.setenv(PROFILE, "training")
    for found in (resolve(), Settings()):
        assert found.model_dump() == {**DEFAULTS, "max_retries": 7, "sync_wait_timeout": 3000.0}
    other = tmp_path / "other.ini"
    other.write_text("[GE]\nheartbeat_interval = 8\n")
    changes = {"heartbeat_interval": 8.0, "enable_async": False}
    assert resolve(config=other, profile="batch").model_dump() == {**DEFAULTS, **changes}
    assert Settings(max_retries=1).max_retries == 1


def test_settings_that_are_given_in_whole_ask_no_other_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG, "nowhere.ini")
    assert Settings(**DEFAULTS).model_dump() == DEFAULTS
    with pytest.raises(SettingsError, match=r"settings file nowhere.ini: got No such file"):
        Settings(max_retries=1)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("STEADYSUM_MAX_RETRIES", "many", "STEADYSUM_MAX_RETRIES: got 'many'; allowed: an integer from 0 to 100"),
        (
            "STEADYSUM_MAX_RETRYS",
            "1",
            "environment variable: got 'STEADYSUM_MAX_RETRYS'; allowed: STEADYSUM_SYNC.*is STEADYSUM_MAX_RETRIES",
        ),
        (PROFILE, "train", "profile: got 'train'; allowed: training, inference, batch"),
    ],
)
def test_a_mistake_outside_is_one_even_where_an_argument_comes_first(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=message):
        resolve({"max_retries": 1})


def test_a_mistake_in_the_file_is_one_even_where_the_environment_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STEADYSUM_MAX_RETRIES", "5")
    with pytest.raises(SettingsError, match=r"max_retries in .*ge.ini, line 3: got '101'"):
        resolve(config=ini(tmp_path, "[GE]\n; too many\nmax_retries = 101\n"))


def test_a_variable_of_another_part_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STEADYSUM_TRACES", "STEADYSUM_ISA", "STEADYSUM_RULES", "STEADYSUM_REQUIRE_NATIVE"):
        monkeypatch.setenv(variable, "1")
    assert resolve().model_dump() == DEFAULTS


def test_a_file_saved_on_windows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ge.ini"
    path.write_bytes(b"\xef\xbb\xbf[GE]\r\nmax_retries = 9\r\n")
    assert where_from(config=path)["max_retries"] == Origin(9, "file", f"{path}, line 2")


NAMES = some.text("abcdXY_", min_size=1, max_size=6)
FILLING = some.sampled_from(["", "; note", "# a = 1", "  # deep"])


@for_any(
    some.lists(
        some.tuples(NAMES, some.sampled_from(["=", " = ", ":", " : "]), FILLING), unique_by=lambda x: x[0].lower()
    )
)
def test_every_name_is_found_on_the_line_where_it_stands(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str, str]]
) -> None:
    written = ["[OTHER]", "a = 1", "[GE]"]
    for name, sign, filling in lines:
        written += [filling, f"{name}{sign}{len(written) + 2}"]  # the value is the line's own number
    path = ini(tmp_path_factory.mktemp("lines"), "\n".join(written))
    found = lines_of_section(path)
    assert found.keys() == {name.lower() for name, _, _ in lines}
    for line in found.values():
        assert line.value == str(line.number)


def test_importing_the_package_does_not_import_pydantic() -> None:
    program = "import sys, steadysum; print([name for name in sys.modules if name.startswith('pydantic')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
