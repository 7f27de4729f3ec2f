"""Versions of Python packages and of the vendor's tools: which comes first, and which are in a range.

The vendor writes 5.1.RC2 where Python packages write 5.1rc2, and tries his candidates before the release as they do:
5.1.RC1 < 5.1.RC2 < 5.1 = 5.1.0 < 6.0.RC1. Not here: which range is bad (rules.toml).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, NamedTuple

from steadysum.errors import RangeError

__all__ = ["Range", "parse_range", "version_key"]

# Words in versions, from the earliest; a version that ends stands between "rc" and what comes after a release.
_RANKS: Final = {
    "dev": -5,
    "t": -4,  # the vendor's internal tests: 8.0.T63
    "a": -3,
    "alpha": -3,
    "b": -2,
    "beta": -2,
    "c": -1,
    "rc": -1,
    "pre": -1,
    "preview": -1,
    "post": 1,
    "rev": 1,
    "r": 1,
}
_END: Final = (0, 0)
_FURTHER: Final = 2  # a number after a word: 24.1.rc3.7 comes after 24.1.rc3, and after 24.1.rc3.post1
_FORM: Final = "numbers and words such as rc, divided by dots: 2.13.0, 5.1.RC2, 2.7.1.post2, 9.0.0-beta.1"
_PARTS: Final = re.compile(r"\d+|[a-z]+|[^a-z\d._-]")

_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<=": le, ">=": ge, "==": eq, "!=": ne, "<": lt, ">": gt,
}  # fmt: skip
_CONDITION: Final = re.compile(r"\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")
_RANGE_FORM: Final = (
    "conditions such as < 5.1.RC2, >= 2.13, == 2.13.* with commas (all of them) and `or` (one of them) between, or * "
    "for every version"
)


def version_key(text: str) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Something that orders as the versions do. What follows a + is a build, not a version: 2.13.0+cpu is 2.13.0.

    Raises:
        RangeError: it doesn't read as a version.

    >>> version_key("5.1.RC2") < version_key("5.1") == version_key("5.1.0") < version_key("6.0.RC1")
    True
    """
    parts = _PARTS.findall(text.strip().lower().partition("+")[0].removeprefix("cann-").removeprefix("v"))
    numbers = 0
    while numbers < len(parts) and parts[numbers].isdigit():
        numbers += 1
    release = [int(part) for part in parts[:numbers]]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    if not release:
        raise RangeError("version", repr(text), _FORM, "Correct it.")
    return tuple(release), (*_words(text, parts[numbers:]), _END)


def _words(text: str, parts: list[str]) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    wants_number = False
    for part in parts:
        if part.isdigit():
            pairs[-1:] = [(pairs[-1][0], int(part))] if wants_number else [pairs[-1], (_FURTHER, int(part))]
        elif part in _RANKS:
            pairs.append((_RANKS[part], 0))
        else:
            raise RangeError("version", repr(text), _FORM, f"{part!r} isn't a word that versions have.")
        wants_number = not part.isdigit()
    return pairs


class Condition(NamedTuple):
    """One comparison."""

    sign: str
    version: str

    def holds(self, version: str) -> bool:
        """Whether it does, for a version."""
        if self.version.endswith("*"):
            return _begins(version, self.version[:-1]) == (self.sign == "==")
        return bool(_OPERATORS[self.sign](version_key(version), version_key(self.version)))


class Range(NamedTuple):
    """The versions that satisfy all conditions of one of the alternatives."""

    text: str
    alternatives: tuple[tuple[Condition, ...], ...]  # one without conditions: every version

    def has(self, version: str) -> bool:
        """Whether the version is in it.

        Raises:
            RangeError: it doesn't read as a version.

        >>> parse_range(">= 2.13, < 2.14 or == 2.15.*").has("2.15.1+cpu")
        True
        """
        return any(all(condition.holds(version) for condition in conditions) for conditions in self.alternatives)


def parse_range(text: str) -> Range:
    """The range that is written so.

    Args:
        text: conditions `sign version` with a sign of <, <=, >, >=, ==, != and `,` or ` or ` between; `== 910B*` is of
            the text's beginning; `*` alone is every version.

    Raises:
        RangeError: it can't be read.

    >>> parse_range("< 5.1.RC2").has("5.1.RC1"), parse_range("< 5.1.RC2").has("5.1")
    (True, False)
    """
    if text.strip() == "*":
        return Range(text, ((),))
    alternatives = tuple(
        tuple(_condition(condition, text) for condition in alternative.split(","))
        for alternative in re.split(r"\bor\b", text)
    )
    return Range(text, alternatives)


def _condition(text: str, whole: str) -> Condition:
    matched = _CONDITION.fullmatch(text)
    if matched is None:
        raise RangeError("range", repr(whole), _RANGE_FORM, f"{text.strip()!r} isn't such a condition.")
    condition = Condition(matched[1], matched[2])
    if not condition.version.endswith("*"):
        version_key(condition.version)
    elif condition.sign not in ("==", "!="):
        raise RangeError("range", repr(whole), _RANGE_FORM, "A * can only stand after == or !=.")
    return condition


def _begins(version: str, beginning: str) -> bool:
    """Of text, so that names of chips have ranges, too. 2.13 is one of 2.13.*, as for Python's own packages."""
    text, beginning = version.strip().lower(), beginning.lower()
    return text.startswith(beginning) or text.partition("+")[0] + "." == beginning
