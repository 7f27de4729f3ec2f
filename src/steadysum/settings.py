"""Settings of the emulated device's syncs, from arguments, the environment, an INI file or a profile.

What is given in code comes first, then the environment (STEADYSUM_SYNC_WAIT_TIMEOUT, ...), then an INI file, then the
defaults. Import it where it is used: pydantic-settings isn't free, and `import steadysum` must not pay for it.
"""

from __future__ import annotations

import configparser
import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from steadysum.errors import SettingsError

__all__ = ["PROFILES", "SECTION", "Settings"]

SECTION: Final = "GE"  # of the INI file, as the field report has it
_PREFIX: Final = "STEADYSUM_"
_POLICIES: Final = ("legacy", "enhanced", "verified", "duplicated")  # steadysum.sync.policies.POLICIES, by number

# Scenarios of the field report, R16. What each costs and promises is measured, not asserted.
PROFILES: Final[dict[str, dict[str, Any]]] = {
    "training": {"sync_wait_timeout": 3000},
    "inference": {"allreduce_policy": 2},
    "batch": {"enable_async": False},
}

_ALLOWED: Final = {
    "sync_wait_timeout": "milliseconds, a finite number > 0",
    "allreduce_policy": "0 to 3, or " + ", ".join(_POLICIES),
    "enable_async": "true or false",
    "max_retries": "an integer from 0 to 100",
    "heartbeat_interval": "milliseconds, a finite number > 0",
}


def _policy_by_name(value: Any) -> Any:
    if isinstance(value, str) and value.strip().lower() in _POLICIES:
        return _POLICIES.index(value.strip().lower())
    return _no_bool(value)


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a bool is no number")
    return value


_Milliseconds = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]


class Settings(BaseSettings):
    """How cores wait for each other.

    Args:
        sync_wait_timeout: milliseconds of one wait at a sync point, > 0.
        allreduce_policy: how a sync is done: 0 legacy, 1 enhanced, 2 verified, 3 duplicated; by number or by name.
        enable_async: cube and vector units overlap, through double buffers.
        max_retries: how often what fails is tried again, 0 to 100.
        heartbeat_interval: milliseconds between two heartbeats of a unit that waits for the others, > 0.

    Raises:
        SettingsError: a value outside its range, or a name that isn't known; also from the environment.

    Source: sync_wait_timeout, allreduce_policy and enable_async are the field report's, with its defaults.

    >>> Settings(allreduce_policy="verified", max_retries=5).allreduce_policy
    2
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid", validate_default=False)

    sync_wait_timeout: _Milliseconds = 2000.0
    allreduce_policy: Annotated[int, BeforeValidator(_policy_by_name), Field(ge=0, le=3)] = 1
    enable_async: bool = True
    max_retries: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=100)] = 3
    heartbeat_interval: _Milliseconds = 500.0

    def __init__(self, **values: Any) -> None:
        _check_names(values, "setting", "")
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _settings_error(error, values) from None

    @property
    def policy(self) -> str:
        """The policy's name."""
        return _POLICIES[self.allreduce_policy]

    @staticmethod
    def profile(name: str, **changes: Any) -> Settings:
        """The settings of a scenario: "training", "inference" or "batch", with changes.

        Raises:
            SettingsError: no profile has this name, or a change is wrong.

        >>> Settings.profile("training", max_retries=1).sync_wait_timeout
        3000.0
        """
        if name not in PROFILES:
            raise SettingsError("profile", repr(name), ", ".join(PROFILES), _did_you_mean(name, tuple(PROFILES)))
        return Settings(**{**PROFILES[name], **changes})

    @staticmethod
    def from_ini(path: str | os.PathLike[str]) -> Settings:
        """The settings in section [GE] of an INI file, the field report's form. The environment comes before the file.

        Raises:
            SettingsError: the file can't be read, has no such section, or has a name or a value there that isn't known.
        """
        values = _section_of(Path(path))
        _check_names(values, "setting", f" in {path}, section [{SECTION}]")
        set_outside = {name for name in values if any(key.upper() == _PREFIX + name.upper() for key in os.environ)}
        try:
            return Settings(**{name: value for name, value in values.items() if name not in set_outside})
        except SettingsError as error:
            if error.what not in values or error.what in set_outside:
                raise
            raise SettingsError(f"{error.what} in {path}", error.seen, error.allowed, error.remedy) from None


def _section_of(path: Path) -> dict[str, str]:
    """The names and values of the section."""
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"))
    form = f"an INI file with a section [{SECTION}]"
    try:
        parser.read_string(path.read_text(encoding="utf-8"), source=str(path))
    except OSError as error:
        raise SettingsError(f"settings file {path}", error.strerror or str(error), form, "Check the path.") from None
    except (configparser.Error, UnicodeDecodeError) as error:
        seen = " ".join(str(error).split())
        raise SettingsError(f"settings file {path}", seen, form, "Write name = value lines below [GE].") from None
    if not parser.has_section(SECTION):
        found = ", ".join(f"[{name}]" for name in parser.sections()) or "no section"
        raise SettingsError(f"settings file {path}", found, form, f"Put a line [{SECTION}] above the settings.")
    return dict(parser[SECTION])


def _check_names(values: Mapping[str, Any], what: str, where: str) -> None:
    for name in values:
        if name not in _ALLOWED:
            raise SettingsError(what + where, repr(name), ", ".join(_ALLOWED), _did_you_mean(name, tuple(_ALLOWED)))


def _did_you_mean(name: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(name), names, 1, cutoff=0.0)[0]
    return f"The nearest known name is {near}."


def _settings_error(error: ValidationError, values: Mapping[str, Any]) -> SettingsError:
    """The first thing that pydantic found, in our form."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    allowed = _ALLOWED[name]
    if name in values:
        return SettingsError(name, repr(first["input"]), allowed, "Correct the value.")
    variable = _PREFIX + name.upper()
    return SettingsError(variable, repr(first["input"]), allowed, "Correct the environment variable, or unset it.")
