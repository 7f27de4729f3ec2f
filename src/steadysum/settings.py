"""Settings of the syncs, from arguments, the environment, an INI file, a profile, or the defaults, in this order.

`resolve` finds every value, and `where_from` says where each comes from. Every source is read and checked in whole: a
mistake that doesn't matter today, since something else comes first, does so tomorrow. How a file is read is
settings_file.py's business. Import it where it is used: pydantic-settings isn't free, and `import steadysum` must not
pay for it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from steadysum.errors import SettingsError
from steadysum.settings_file import SECTION, lines_of_section

__all__ = ["CONFIG", "PROFILE", "PROFILES", "SECTION", "Origin", "Settings", "resolve", "where_from"]

_PREFIX: Final = "STEADYSUM_"
CONFIG: Final = "STEADYSUM_CONFIG"  # names an INI file
PROFILE: Final = "STEADYSUM_PROFILE"  # names one of PROFILES
POLICIES: Final = ("legacy", "enhanced", "verified", "duplicated")  # steadysum.sync.policies.POLICIES, by number

# Scenarios of the field report, R16. What each costs and promises is measured, not asserted.
PROFILES: Final[dict[str, dict[str, Any]]] = {
    "training": {"sync_wait_timeout": 3000},
    "inference": {"allreduce_policy": 2},
    "batch": {"enable_async": False},
}

_ALLOWED: Final = {
    "sync_wait_timeout": "milliseconds, a finite number > 0",
    "allreduce_policy": "0 to 3, or " + ", ".join(POLICIES),
    "enable_async": "true or false",
    "max_retries": "an integer from 0 to 100",
    "heartbeat_interval": "milliseconds, a finite number > 0",
}
# How alike a variable's name must be to a setting's to be taken for a slip of the pen: STEADYSUM_MAX_RETRYS is,
# STEADYSUM_TRACES, which is another part's, isn't.
_ALIKE: Final = 0.8


def _policy_by_name(value: Any) -> Any:
    if isinstance(value, str) and value.strip().lower() in POLICIES:
        return POLICIES.index(value.strip().lower())
    return _no_bool(value)


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a bool is no number")
    return value


_Milliseconds = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]


class _Values(BaseSettings):
    """The fields: what is given to it, and the defaults."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid", validate_default=False)

    sync_wait_timeout: _Milliseconds = 2000.0
    allreduce_policy: Annotated[int, BeforeValidator(_policy_by_name), Field(ge=0, le=3)] = 1
    enable_async: bool = True
    max_retries: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=100)] = 3
    heartbeat_interval: _Milliseconds = 500.0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - given by name
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The other sources are `where_from`'s business."""
        return (init_settings,)


class Settings(_Values):
    """How cores wait for each other. What isn't given is found as `resolve` finds it.

    Args:
        sync_wait_timeout: milliseconds of one wait at a sync point, > 0.
        allreduce_policy: how a sync is done: 0 legacy, 1 enhanced, 2 verified, 3 duplicated; by number or by name.
        enable_async: cube and vector units overlap, through double buffers.
        max_retries: how often what fails is tried again, 0 to 100.
        heartbeat_interval: milliseconds between two heartbeats of a unit that waits for the others, > 0.

    Raises:
        SettingsError: a value outside its range, or a name that isn't known; also from the environment, and from a file
            or a profile that it names.

    Source: sync_wait_timeout, allreduce_policy and enable_async are the field report's, with its defaults.

    >>> Settings(allreduce_policy="verified", max_retries=5).allreduce_policy
    2
    """

    def __init__(self, **values: Any) -> None:
        _check_names(values)
        if values.keys() != _ALLOWED.keys():
            values = {name: origin.value for name, origin in where_from(values).items()}
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(error) from None

    @property
    def policy(self) -> str:
        """The policy's name."""
        return POLICIES[self.allreduce_policy]

    @staticmethod
    def profile(name: str, **changes: Any) -> Settings:
        """The settings of a scenario, with changes: `resolve(changes, profile=name)`.

        >>> Settings.profile("training", max_retries=1).sync_wait_timeout
        3000.0
        """
        return resolve(changes, profile=name)

    @staticmethod
    def from_ini(path: str | os.PathLike[str]) -> Settings:
        """The settings with those in section [GE] of an INI file: `resolve(config=path)`."""
        return resolve(config=path)


class Origin(NamedTuple):
    """A setting's value, and where it comes from."""

    value: Any
    source: Literal["argument", "environment", "file", "profile", "default"]
    where: str  # the variable; the file and its line; the profile; else empty


def resolve(
    arguments: Mapping[str, Any] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    profile: str | None = None,
) -> Settings:
    """Find every setting: in the arguments, else the environment, the INI file, the profile, the defaults.

    Args:
        arguments: settings by name, as `Settings` takes them.
        config: an INI file with a section [GE]. None: the one that STEADYSUM_CONFIG names, if any.
        profile: "training", "inference" or "batch". None: the one that STEADYSUM_PROFILE names, if any.

    Returns:
        All settings.

    Raises:
        SettingsError: a value outside its range, a name that isn't known, a profile that there isn't, a file that can't
            be used; with the variable, or the file and its line. Every source is checked in whole.

    Source: names and the file's form are the field report's (R15), the profiles its scenarios (R16).

    >>> resolve({"max_retries": 1}, profile="inference").policy
    'verified'
    """
    origins = where_from(arguments, config=config, profile=profile)
    return Settings(**{name: origin.value for name, origin in origins.items()})


def where_from(
    arguments: Mapping[str, Any] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    profile: str | None = None,
) -> dict[str, Origin]:
    """Find every setting as `resolve` does, and say of each where it comes from.

    Args:
        arguments: as of `resolve`, and so are the others.

    Returns:
        By the setting's name: its value, as `Settings` has it, and its origin.

    Raises:
        SettingsError: as `resolve`.

    >>> where_from({"max_retries": 1}, profile="inference")["allreduce_policy"]
    Origin(value=2, source='profile', where='inference')
    """
    given = dict(arguments or {})
    _check_names(given)
    config = config if config is not None else os.environ.get(CONFIG) or None
    profile = profile if profile is not None else os.environ.get(PROFILE) or None
    found = {name: Origin(value, "default", "") for name, value in _checked({}).items()}
    if profile is not None:
        found |= {name: Origin(value, "profile", profile) for name, value in _of_profile(profile).items()}
    if config is not None:
        found |= _of_file(config)
    found |= _of_environment()
    return found | {name: Origin(value, "argument", "") for name, value in _given(given).items()}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in _checked(values).items() if name in values}


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, with these values in the form that `Settings` has, and the defaults."""
    try:
        return _Values(**values).model_dump()
    except ValidationError as error:
        raise _refusal(error) from None


def _of_profile(name: str) -> dict[str, Any]:
    if name not in PROFILES:
        raise SettingsError("profile", repr(name), ", ".join(PROFILES), _did_you_mean(name, tuple(PROFILES)))
    return _given(PROFILES[name])


def _of_file(path: str | os.PathLike[str]) -> dict[str, Origin]:
    lines = lines_of_section(path)
    for name, line in lines.items():
        _check_names((name,), f" in {path}, line {line.number}, section [{SECTION}]")
    try:
        values = _given({name: line.value for name, line in lines.items()})
    except SettingsError as error:
        what = f"{error.what} in {path}, line {lines[error.what].number}"
        raise SettingsError(what, error.seen, error.allowed, error.remedy) from None
    return {name: Origin(value, "file", f"{path}, line {lines[name].number}") for name, value in values.items()}


def _of_environment() -> dict[str, Origin]:
    _check_variables()
    try:
        values = _given(EnvSettingsSource(_Values)())
    except SettingsError as error:
        remedy = "Correct the environment variable, or unset it."
        raise SettingsError(_variable(error.what), error.seen, error.allowed, remedy) from None
    return {name: Origin(value, "environment", _variable(name)) for name, value in values.items()}


def _check_variables() -> None:
    """A variable whose name is nearly a setting's is a mistake; others of the prefix are other parts' business."""
    for variable in os.environ:
        name = variable.removeprefix(_PREFIX).lower()
        if not variable.startswith(_PREFIX) or name in _ALLOWED:
            continue
        near = difflib.get_close_matches(name, _ALLOWED, 1, cutoff=_ALIKE)
        if near:
            allowed = ", ".join(map(_variable, _ALLOWED))
            raise SettingsError(
                "environment variable", repr(variable), allowed, f"The nearest known name is {_variable(near[0])}."
            )


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


def _check_names(names: Mapping[str, Any] | tuple[str, ...], where: str = "") -> None:
    for name in names:
        if name not in _ALLOWED:
            remedy = _did_you_mean(name, tuple(_ALLOWED))
            raise SettingsError(f"setting{where}", repr(name), ", ".join(_ALLOWED), remedy)


def _did_you_mean(name: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(name), names, 1, cutoff=0.0)[0]
    return f"The nearest known name is {near}."


def _refusal(error: ValidationError) -> SettingsError:
    """The first thing that pydantic found, in our form."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    return SettingsError(name, repr(first["input"]), _ALLOWED[name], "Correct the value.")
