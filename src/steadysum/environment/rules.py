"""Rules on versions, as data: which versions of a component are known for which symptom, and what to do.

Those of the package are in rules.toml, which says what an entry has; users add files of their own, by name or through
STEADYSUM_RULES. Not here: which version is installed (record.py), and how ranges are read (versions.py).
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from steadysum.environment.record import NAMES, package
from steadysum.environment.vendor import Found
from steadysum.environment.versions import Range, parse_range
from steadysum.errors import RangeError, RulesError

__all__ = ["RULES", "Judgement", "Level", "Match", "Rule", "judge", "packaged_rules", "read_rules", "rules_of"]

RULES: Final = "STEADYSUM_RULES"  # environment variable: files of rules, divided as in PATH

PACKAGE: Final = "python:"  # before the name of a Python package that the record doesn't have
_FIELDS: Final = ("component", "range", "symptom", "remedy", "source")
_OPTIONAL: Final = ("level", "with")
_HEADER: Final = re.compile(r"\s*\[\[\s*rule\s*\]\]")
_AT_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)$|\(at end of document\)$")


class Level(StrEnum):
    """What a rule that applies means."""

    ERROR = "error"  # not to be used
    WARNING = "warning"  # results may be wrong
    NOTE = "note"  # works as it was made, and surprises


class Rule(NamedTuple):
    """What is known of some versions of a component."""

    component: str
    range: Range
    symptom: str
    remedy: str
    source: str
    level: Level
    others: tuple[tuple[str, Range], ...]  # components that must be in their ranges, too
    where: str  # the file and line that it stands in


class Match(NamedTuple):
    """A rule that applies here."""

    rule: Rule
    version: str  # of its component


class Judgement(NamedTuple):
    """What the rules say of an environment."""

    matches: tuple[Match, ...]  # errors first, then warnings, then notes
    checked: int  # rules whose components are here
    missing: tuple[str, ...]  # components of the other rules: not here, or of unknown version
    unread: tuple[tuple[Rule, str], ...]  # rules on a version that doesn't read as one, and that version

    @property
    def worst(self) -> Level | None:
        """The first level that a rule here has, or None."""
        return self.matches[0].rule.level if self.matches else None


def judge(rules: Iterable[Rule], components: Mapping[str, Found]) -> Judgement:
    """Find the rules that apply.

    Args:
        rules: from `rules_of`.
        components: of the record, by name.

    Returns:
        What applies, and what couldn't be told.

    >>> from steadysum.environment.vendor import Found
    >>> [match.rule.source for match in judge(packaged_rules(), {"cann": Found("5.1.RC1", "")}).matches]
    ['field report, R14']
    """
    matches: list[Match] = []
    missing: list[str] = []
    unread: list[tuple[Rule, str]] = []
    checked = 0
    for rule in rules:
        version = _version_of(rule.component, components)
        if version is None:
            missing.append(rule.component)
            continue
        checked += 1
        try:
            if rule.range.has(version) and all(_has(name, others, components) for name, others in rule.others):
                matches.append(Match(rule, version))
        except RangeError as error:
            unread.append((rule, error.seen))
    matches.sort(key=lambda match: list(Level).index(match.rule.level))
    return Judgement(tuple(matches), checked, tuple(dict.fromkeys(missing)), tuple(unread))


def _has(name: str, range: Range, components: Mapping[str, Found]) -> bool:
    version = _version_of(name, components)
    return version is not None and range.has(version)


def _version_of(name: str, components: Mapping[str, Found]) -> str | None:
    if name.startswith(PACKAGE):
        return package(name.removeprefix(PACKAGE)).version
    found = components.get(name)
    return None if found is None else found.version


def rules_of(paths: Iterable[str | os.PathLike[str]] = ()) -> tuple[Rule, ...]:
    """The package's rules, those of STEADYSUM_RULES, and those of some files.

    Args:
        paths: TOML files of the form of rules.toml.

    Raises:
        RulesError: a file can't be read, or an entry isn't a rule; with the file, and the line or the entry.
    """
    variable = [path for path in os.environ.get(RULES, "").split(os.pathsep) if path]
    added = (read_rules(path) for path in (*variable, *paths))
    return (*packaged_rules(), *(rule for rules in added for rule in rules))


def packaged_rules() -> tuple[Rule, ...]:
    """Those that come with steadysum."""
    return _rules_in(files("steadysum.environment").joinpath("rules.toml").read_text(encoding="utf-8"), "rules.toml")


def read_rules(path: str | os.PathLike[str]) -> tuple[Rule, ...]:
    """The rules of a file.

    Raises:
        RulesError: it can't be read, or an entry isn't a rule.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _unusable(str(path), error.strerror or str(error), "Check the path.") from None
    except UnicodeDecodeError as error:
        raise _unusable(str(path), str(error), "Save it as UTF-8.") from None
    return _rules_in(text, str(path))


def _rules_in(text: str, file: str) -> tuple[Rule, ...]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        matched = _AT_LINE.search(str(error))
        line = f", line {matched[1]}" if matched is not None and matched[1] else ""
        raise _unusable(f"{file}{line}", str(error), "Correct the TOML.") from None
    entries = document.get("rule", [])
    unknown = sorted(document.keys() - {"rule"})
    if unknown or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        seen = f"the key {unknown[0]!r}" if unknown else "`rule` that is no list of tables"
        raise _unusable(file, seen, "Begin each rule with a line [[rule]].")
    wheres = _places(text, file, len(entries))
    return tuple(_rule(entry, where) for entry, where in zip(entries, wheres, strict=True))


def _places(text: str, file: str, count: int) -> list[str]:
    """Where each entry stands: its line, or its number where lines don't tell (a text that has such a line in it)."""
    lines = [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
    if len(lines) == count:
        return [f"{file}, line {line}" for line in lines]
    return [f"{file}, rule {number}" for number in range(1, count + 1)]


def _rule(entry: Mapping[str, Any], where: str) -> Rule:
    for name in entry:
        if name not in (*_FIELDS, *_OPTIONAL):
            raise _wrong(where, f"the key {name!r}", ", ".join((*_FIELDS, *_OPTIONAL)), _nearest(name, _FIELDS))
    for name in _FIELDS:
        if name not in entry:
            raise _wrong(where, f"no {name}", ", ".join(_FIELDS), "Write it.")
        if not isinstance(entry[name], str) or not entry[name].strip():
            raise _wrong(where, f"{name} = {entry[name]!r}", "a text that isn't empty", "Correct it.")
    level, others = entry.get("level", Level.WARNING), entry.get("with", {})
    if level not in tuple(Level):
        raise _wrong(where, f"level = {level!r}", ", ".join(Level), "Correct it.")
    if not isinstance(others, dict):
        raise _wrong(where, f"with = {others!r}", "a table {component = range}", "Correct it.")
    return Rule(
        _component(entry["component"], where),
        _range(entry["range"], where),
        entry["symptom"],
        entry["remedy"],
        entry["source"],
        Level(level),
        tuple((_component(name, where), _range(text, where)) for name, text in others.items()),
        where,
    )


def _component(name: str, where: str) -> str:
    if name in NAMES or (name.startswith(PACKAGE) and name != PACKAGE):
        return name
    remedy = f"{_nearest(name, NAMES)} Another Python package is written {PACKAGE}NAME."
    raise _wrong(where, f"component {name!r}", ", ".join(NAMES), remedy)


def _range(text: Any, where: str) -> Range:
    try:
        return parse_range(str(text))
    except RangeError as error:
        raise _wrong(where, f"{error.what} {error.seen}", error.allowed, error.remedy) from None


def _nearest(name: str, names: tuple[str, ...]) -> str:
    return f"The nearest known name is {difflib.get_close_matches(name, names, 1, cutoff=0.0)[0]}."


def _wrong(where: str, seen: str, allowed: str, remedy: str) -> RulesError:
    return RulesError(f"version rule in {where}", seen, allowed, remedy)


def _unusable(where: str, seen: str, remedy: str) -> RulesError:
    return RulesError(f"version rules {where}", seen, "a TOML file of [[rule]] tables", remedy)
