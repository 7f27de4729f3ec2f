"""Arm: one fault, armed: which kind, where, when, how often, and its knobs. Reads and writes the text of --fault.

Not here: what it does to a machine (faults.py).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from steadysum.cores.fault_kinds import BIT_RANGES, KINDS, Knob, Value
from steadysum.errors import RangeError
from steadysum.sync.actions import Place
from steadysum.sync.memory import Span
from steadysum.trace.events import Unit

__all__ = ["Arm"]

Calls = tuple[int, int | None]  # first, last; None: no last one

_SITE: Final = re.compile(r"([^\[\],=]+)(?:\[(\d+):(\d+)\])?$")
_CALLS: Final = re.compile(r"(\d+)(?:(-)(\d+)?)?$")
_BITS: Final = re.compile(r"(\d+)-(\d+)$")
_WIDEST: Final = 64  # bits of an element


@dataclass(frozen=True, init=False)
class Arm:
    """A fault, armed. It acts at each opportunity that fits all of what is given.

    Args:
        kind: of steadysum.cores.faults.KINDS.
        probability: of acting at an opportunity, 0 <= probability <= 1.
        core: number of the acting unit's core; None: any.
        role: of the acting unit: "cube", "v0", "v1"; None: any.
        phase: a phase by any of its words: "P2", "tiles", "P2 tiles"; None: any.
        site: name of a barrier or flag, a region or elements of it, or a label of work, as fits the kind; None: what
            the kind says.
        calls: number of the call, from 1, or (first, last), last None for no last one; None: every call.
        most: how often it acts at most, in all calls together; None: no limit. A dead core counts once.
        knobs: of the kind.

    Raises:
        RangeError: a kind, a knob or a value that there isn't.

    >>> Arm("stale", core=3, phase="P2", probability=0.1)
    Arm.parse('stale:probability=0.1,core=3,phase=P2')
    """

    kind: str
    probability: float = 1.0
    core: int | None = None
    role: str | None = None
    phase: str | None = None
    site: str | None = None
    calls: Calls | None = None
    most: int | None = None
    knobs: tuple[tuple[str, Value], ...] = ()  # those that were given, by name; see knob()
    region: str | None = field(default=None, compare=False)  # of the site: its name
    elements: tuple[int, int] | None = field(default=None, compare=False)  # of the site

    def __init__(
        self,
        kind: str,
        probability: float = 1.0,
        core: int | None = None,
        role: str | None = None,
        phase: str | None = None,
        site: str | None = None,
        calls: int | Calls | None = None,
        most: int | None = None,
        **knobs: Value,
    ) -> None:
        _known("kind", kind, KINDS)
        span = None if isinstance(calls, bool) else (calls, calls) if isinstance(calls, int) else calls
        given = {
            "kind": kind,
            "probability": _number("probability", probability, 0.0, 1.0, float),
            "core": None if core is None else _number("core", core, 0, math.inf, int),
            "role": _word("role", role),
            "phase": _word("phase", phase),
            "site": _word("site", site),
            "calls": _check_calls(calls, span),
            "most": None if most is None else _number("most", most, 0, math.inf, int),
            "knobs": tuple(sorted((name, _knob(kind, name, value)) for name, value in knobs.items())),
        }
        given["region"], given["elements"] = _split_site(kind, site)
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def parse(text: str) -> Arm:
        """Reads kind:name=value,name=value.

        Raises:
            RangeError: what isn't of this form, or names what there isn't.

        >>> str(Arm.parse("stale:core=3,phase=P2,probability=0.1,calls=2-"))
        'stale:probability=0.1,core=3,phase=P2,calls=2-'
        """
        kind, _, rest = text.strip().partition(":")
        _known("kind", kind, KINDS)
        given: dict[str, Any] = {}
        for part in rest.split(",") if rest else []:
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value or name in given:
                raise RangeError(
                    f"fault {text!r}",
                    seen=repr(part),
                    allowed="name=value, each name once, with commas between",
                    remedy="For example stale:core=3,phase=P2,probability=0.1.",
                )
            given[name] = _read(kind, name, value)
        return Arm(kind, **given)

    def __str__(self) -> str:
        parts = []
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.compare and entry.name not in ("kind", "knobs") and value != entry.default:
                parts.append(f"{entry.name}={_text(value)}")
        parts += [f"{name}={_text(value)}" for name, value in self.knobs]
        return f"{self.kind}:{','.join(parts)}" if parts else self.kind

    def __repr__(self) -> str:
        return f"Arm.parse({str(self)!r})"

    def knob(self, name: str) -> Any:
        """The knob's value: the one given, or the kind's default."""
        for known, value in self.knobs:
            if known == name:
                return value
        return KINDS[self.kind].knobs[name].default

    def covers(self, call: int) -> bool:
        """Whether it is armed in this call."""
        return self.calls is None or (self.calls[0] <= call and (self.calls[1] is None or call <= self.calls[1]))

    def fits(self, unit: Unit) -> bool:
        """Whether it is armed on this unit."""
        return (self.core is None or self.core == unit.core) and (self.role is None or self.role == unit.role)

    def fits_phase(self, place: Place) -> bool:
        """Whether it is armed in this phase."""
        return self.phase is None or self.phase == place.phase or self.phase in place.phase.split()

    def fits_span(self, span: Span) -> bool:
        """Whether it is armed on any of these elements; without a site, it is."""
        if self.region is None:
            return True
        return self.region == span.region and (
            self.elements is None or (self.elements[0] < span.stop and span.start < self.elements[1])
        )


# ---- checks ---------------------------------------------------------------------------------------------------------


def _knob(kind: str, name: str, value: Any) -> Value:
    knobs = KINDS[kind].knobs
    _known(f"knob of {kind}", name, knobs)
    knob = knobs[name]
    what = f"{name} of {kind}"
    if isinstance(knob.default, bool):
        if not isinstance(value, bool):
            raise RangeError(what, repr(value), "True, False", knob.meaning.capitalize() + ".")
        return value
    if not isinstance(knob.default, str):
        number: Value = _number(what, value, knob.low, knob.high, type(knob.default))
        return number
    if name == "bits":
        return _check_bits(what, value, knob)
    if value not in knob.choices:
        raise RangeError(what, repr(value), ", ".join(knob.choices), f"It is: {knob.meaning}.")
    return str(value)


def _check_bits(what: str, value: Any, knob: Knob) -> str:
    match = _BITS.match(value) if isinstance(value, str) else None
    if value in BIT_RANGES or (match and int(match[1]) <= int(match[2]) < _WIDEST):
        return str(value)
    allowed = ", ".join(BIT_RANGES) + f", or first-last with 0 <= first <= last < {_WIDEST}"
    raise RangeError(what, repr(value), allowed, f"It is: {knob.meaning}.")


def _number(what: str, value: Any, low: float, high: float, kind: type) -> Any:
    """A finite number of that type, in [low, high]."""
    right = isinstance(value, int) or (kind is float and isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not right or not low <= value <= high:
        name = "an integer" if kind is int else "a number"
        bound = f" >= {low:g}" if high == math.inf else f" from {low:g} to {high:g}"
        allowed = name if low == -math.inf else name + bound
        raise RangeError(
            f"{what} of a fault" if " of " not in what else what, repr(value), allowed, "See docs/faults.md."
        )
    return kind(value)


def _word(what: str, value: Any) -> Any:
    if value is None or (isinstance(value, str) and value.strip() == value and value and not set(value) & set(",=")):
        return value
    raise RangeError(f"{what} of a fault", repr(value), "a name without commas or equals signs", "See docs/faults.md.")


def _split_site(kind: str, site: str | None) -> tuple[str | None, tuple[int, int] | None]:
    """The name in a site, and the elements."""
    if site is None:
        return None, None
    known = KINDS[kind]
    if not known.takes_site or (known.fixed_sites and site not in known.fixed_sites):
        allowed = ", ".join(known.fixed_sites) if known.fixed_sites else "none: this kind acts on units"
        raise RangeError(f"site of {kind}", repr(site), allowed, "Leave it out, or name one of these.")
    match = _SITE.match(site)
    if match is None or (match[2] is not None and int(match[2]) >= int(match[3])):
        raise RangeError(
            f"site of {kind}", repr(site), "name, or name[start:stop] with start < stop", "For example max[128:192]."
        )
    return match[1], None if match[2] is None else (int(match[2]), int(match[3]))


def _check_calls(given: Any, span: Any) -> Calls | None:
    if given is None:
        return None
    if isinstance(span, tuple) and len(span) == 2:
        first, last = span
        if type(first) is int and first >= 1 and (last is None or (type(last) is int and first <= last)):
            return first, last
    raise RangeError(
        "calls of a fault", repr(given), "a number from 1, or (first, last)", "As text: calls=3, calls=2-5, calls=2-."
    )


def _known(what: str, name: Any, names: Mapping[str, Any]) -> None:
    if name in names:
        return
    near = difflib.get_close_matches(str(name), names, 1)
    remedy = f"Did you mean {near[0]}?" if near else "See docs/faults.md."
    raise RangeError(f"{what} of a fault" if what == "kind" else what, repr(name), ", ".join(names) or "none", remedy)


# ---- text -----------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        first, last = value
        return f"{first}-" if last is None else f"{first}" if first == last else f"{first}-{last}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


_OWN: Final[dict[str, Any]] = {
    "probability": 1.0,
    "core": 0,
    "role": "",
    "phase": "",
    "site": "",
    "calls": (),
    "most": 0,
}


def _read(kind: str, name: str, text: str) -> Any:
    """A value from its text: of the type that its name has."""
    names = {**_OWN, **{knob: entry.default for knob, entry in KINDS[kind].knobs.items()}}
    _known(f"name in a fault of kind {kind}", name, names)
    pattern = names[name]
    if name == "calls":
        match = _CALLS.match(text)
        if match is None:
            _check_calls(text, None)
            raise AssertionError
        first = int(match[1])
        return first, first if not match[2] else int(match[3]) if match[3] else None
    if isinstance(pattern, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    if isinstance(pattern, str):
        return text
    try:
        return int(text) if isinstance(pattern, int) else float(text)
    except ValueError:
        return text  # Arm says what is allowed
