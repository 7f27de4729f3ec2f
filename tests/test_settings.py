"""Tests of steadysum.settings: where values come from, what is refused, and that nobody pays for it unasked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steadysum.errors import SettingsError
from steadysum.settings import _POLICIES, PROFILES, Settings
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
    for name in DEFAULTS:
        monkeypatch.delenv(f"STEADYSUM_{name.upper()}", raising=False)


def ini(folder: Path, text: str) -> Path:
    path = folder / "ge.ini"
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_field_report() -> None:
    assert Settings().model_dump() == DEFAULTS


def test_policies_have_their_names_and_numbers() -> None:
    assert _POLICIES == policies.POLICIES
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


def test_a_wrong_value_in_the_environment_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYSUM_MAX_RETRIES", "many")
    with pytest.raises(SettingsError, match="STEADYSUM_MAX_RETRIES: got 'many'; allowed: an integer from 0 to 100"):
        Settings()


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"profile: got 'train'; allowed: training, inference, batch.*is training"):
        Settings.profile("train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[GE]\nsync_wait_time = 1\n",
            "setting in .*section \\[GE\\]: got 'sync_wait_time'.*is sync_wait_timeout\\.",
        ),
        ("[GE]\nsync_wait_timeout = -5\n", "sync_wait_timeout in .*ge.ini: got '-5'; allowed: milliseconds"),
        ("[GE]\nmax_retries =\n", "max_retries in .*ge.ini: got ''"),
        (
            "[ge]\nmax_retries = 1\n",
            "settings file .*ge.ini: got \\[ge\\]; allowed: an INI file with a section \\[GE\\]",
        ),
        ("", "settings file .*: got no section"),
        ("max_retries = 1\n", "settings file .*: got File contains no section headers"),
        ("[GE]\nmax_retries = 1\nmax_retries = 2\n", "settings file .*option 'max_retries' .* already exists"),
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


def test_importing_the_package_does_not_import_pydantic() -> None:
    program = "import sys, steadysum; print([name for name in sys.modules if name.startswith('pydantic')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
