"""Reads section [GE] of an INI file, the field report's form of settings, with the line of each value.

Python's own parser says what is written, but not where: the lines are found in a second look at the text. What a name
or a value means is settings.py's business.
"""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from steadysum.errors import SettingsError

__all__ = ["SECTION", "Line", "lines_of_section"]

SECTION: Final = "GE"  # as the field report has it

_COMMENTS: Final = ("#", ";")
_HEADER: Final = re.compile(r"\[(?P<name>.+)\]")
_NAME: Final = re.compile(r"(?P<name>.*?)\s*[=:]")


class Line(NamedTuple):
    """A value, and where it stands."""

    value: str
    number: int  # of the file's line, from 1


def lines_of_section(path: str | os.PathLike[str]) -> dict[str, Line]:
    """The names in the section, in lower case, with their values and lines.

    Raises:
        SettingsError: the file can't be read, isn't an INI file, or has no such section.
    """
    text = _text_of(Path(path))
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=_COMMENTS)
    try:
        parser.read_string(text, source=str(path))
    except configparser.Error as error:
        seen = " ".join(str(error).split())
        raise _unusable(path, seen, f"Write name = value lines below [{SECTION}].") from None
    if not parser.has_section(SECTION):
        found = ", ".join(f"[{name}]" for name in parser.sections()) or "no section"
        raise _unusable(path, found, f"Put a line [{SECTION}] above the settings.")
    numbers = _numbers(text, parser)
    return {name: Line(value, numbers.get(name, 0)) for name, value in parser[SECTION].items()}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # editors on Windows put a mark before the text
    except OSError as error:
        raise _unusable(path, error.strerror or str(error), "Check the path.") from None
    except UnicodeDecodeError as error:
        raise _unusable(path, str(error), "Save it as UTF-8.") from None


def _unusable(path: str | os.PathLike[str], seen: str, remedy: str) -> SettingsError:
    return SettingsError(f"settings file {path}", seen, f"an INI file with a section [{SECTION}]", remedy)


def _numbers(text: str, parser: configparser.ConfigParser) -> dict[str, int]:
    """The lines of the names that count in the section: its own, and those of [DEFAULT], which INI files may have."""
    numbers: dict[str, dict[str, int]] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith(_COMMENTS):
            continue
        header, named = _HEADER.match(content), _NAME.match(content)
        if header is not None:
            section = header["name"]
        elif named is not None:
            # The first line that looks so is the name's: a later one could only be the rest of another's value.
            numbers.setdefault(section, {}).setdefault(parser.optionxform(named["name"]), number)
    return {**numbers.get(parser.default_section, {}), **numbers.get(SECTION, {})}
