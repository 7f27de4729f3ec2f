"""Tests of steadysum.cores.arm: what can be armed, its text, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadysum.cores.faults import KINDS, Arm, Knob
from steadysum.errors import RangeError
from steadysum.sync.memory import Span

NAMES = st.text("abcxyz_ ", min_size=1, max_size=8).filter(lambda name: name == name.strip())
CALLS = st.tuples(st.integers(1, 9), st.none() | st.integers(9, 99))


def values_of(name: str, knob: Knob) -> st.SearchStrategy[Any]:
    if name == "bits":
        return st.sampled_from(["any", "sign", "exponent", "mantissa", "20-30"])
    if isinstance(knob.default, bool):
        return st.booleans()
    if isinstance(knob.default, str):
        return st.sampled_from(knob.choices)
    low, high = max(knob.low, -1e6), min(knob.high, 1e6)
    return st.integers(int(low), int(high)) if isinstance(knob.default, int) else st.floats(low, high)


@st.composite
def arms(draw: st.DrawFn) -> Arm:
    kind = draw(st.sampled_from(sorted(KINDS)))
    known = KINDS[kind]
    sites = st.sampled_from(known.fixed_sites) if known.fixed_sites else NAMES | NAMES.map(lambda name: f"{name}[3:7]")
    own = {
        "probability": st.floats(0, 1),
        "core": st.integers(0, 99),
        "role": NAMES,
        "phase": NAMES,
        "calls": CALLS,
        "most": st.integers(0, 9),
        **({"site": sites} if known.takes_site else {}),
    }
    everything = {**own, **{name: values_of(name, knob) for name, knob in known.knobs.items()}}
    return Arm(kind, **draw(st.fixed_dictionaries({}, optional=everything)))


@given(arms())
def test_the_text_of_an_arm_gives_the_same_arm_back(arm: Arm) -> None:
    assert Arm.parse(str(arm)) == arm
    assert hash(Arm.parse(str(arm))) == hash(arm)
    assert str(Arm.parse(str(arm))) == str(arm)


def test_the_text_is_that_of_the_command_line() -> None:
    arm = Arm.parse("stale:core=3,phase=P2,probability=0.1")
    assert arm == Arm("stale", core=3, phase="P2", probability=0.1)
    assert str(arm) == "stale:probability=0.1,core=3,phase=P2"
    assert str(Arm("dropped")) == "dropped"


def test_a_knob_that_is_not_given_has_the_kinds_default() -> None:
    assert Arm("stale").knob("age") == KINDS["stale"].knobs["age"].default == 1
    assert Arm("stale", age=3).knob("age") == 3


@pytest.mark.parametrize(
    ("text", "first", "last"), [("3", 3, 3), ("2-5", 2, 5), ("2-", 2, 10**9)], ids=["one", "some", "from"]
)
def test_an_arm_covers_the_calls_that_it_names(text: str, first: int, last: int) -> None:
    arm = Arm.parse(f"dropped:calls={text}")
    covered = [call for call in (*range(1, 8), 10**9) if arm.covers(call)]
    assert covered == [call for call in (*range(1, 8), 10**9) if first <= call <= last]


def test_elements_of_a_region_are_a_site() -> None:
    arm = Arm("stale", site="max[128:192]")
    spans = [Span("max", 0, 128), Span("max", 100, 129), Span("max", 191, 200), Span("max", 192, 200)]
    assert [arm.fits_span(span) for span in spans] == [False, True, True, False]
    assert not arm.fits_span(Span("sum", 128, 192))
    assert Arm("stale").fits_span(Span("sum", 128, 192))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stal:age=1", "kind of a fault: got 'stal'; allowed: delay, stale, .*Did you mean stale\\?"),
        ("stale:agee=1", "name in a fault of kind stale: got 'agee'; allowed: .*age\\. Did you mean age\\?"),
        ("stale:age=0", "age of stale: got 0; allowed: an integer >= 1"),
        ("stale:age=1.5", "age of stale: got '1.5'; allowed: an integer >= 1"),
        ("stale:core=x", "core of a fault: got 'x'; allowed: an integer >= 0"),
        ("stale:core=-1", "core of a fault: got -1; allowed: an integer >= 0"),
        ("stale:probability=1.1", "probability of a fault: got 1.1; allowed: a number from 0 to 1"),
        ("stale:probability=nan", "probability of a fault: got nan; allowed: a number from 0 to 1"),
        ("stale:calls=0", "calls of a fault: got \\(0, 0\\); allowed: a number from 1"),
        ("stale:calls=5-2", "calls of a fault: got \\(5, 2\\)"),
        ("stale:calls=x", "calls of a fault: got 'x'"),
        ("stale:core", "fault 'stale:core': got 'core'; allowed: name=value"),
        ("stale:core=1,core=2", "fault .*: got 'core=2'; allowed: name=value, each name once"),
        ("stale:site=max[3:3]", "site of stale: got 'max\\[3:3\\]'; allowed: name, or name\\[start:stop\\]"),
        ("dead:site=max", "site of dead: got 'max'; allowed: none: this kind acts on units"),
        ("tail:site=roof", "site of tail: got 'roof'; allowed: floor, padding"),
        ("delay:distribution=normal", "distribution of delay: got 'normal'; allowed: fixed, lognormal, exponential"),
        ("flip:bits=high", "bits of flip: got 'high'; allowed: any, sign, exponent, mantissa, or first-last"),
        ("flip:bits=9-3", "bits of flip: got '9-3'"),
        ("reordered:own=yes", "own of reordered: got 'yes'; allowed: True, False"),
        ("slow:factor=0.5", "factor of slow: got 0.5; allowed: a number >= 1"),
        ("", "kind of a fault: got ''"),
    ],
)
def test_what_there_is_not_is_refused(text: str, message: str) -> None:
    with pytest.raises(RangeError, match=message):
        Arm.parse(text)


def test_values_of_wrong_types_are_refused() -> None:
    with pytest.raises(RangeError, match="core of a fault: got True"):
        Arm("stale", core=True)
    with pytest.raises(RangeError, match=r"most of a fault: got 1\.5"):
        Arm("stale", most=1.5)  # type: ignore[arg-type]
    with pytest.raises(RangeError, match="microseconds of delay: got inf"):
        Arm("delay", microseconds=math.inf)
    with pytest.raises(RangeError, match="knob of delay: got 'age'; allowed: distribution, microseconds, sigma"):
        Arm("delay", age=1)
    with pytest.raises(RangeError, match="phase of a fault: got 'P2,P3'; allowed: a name without commas"):
        Arm("delay", phase="P2,P3")
