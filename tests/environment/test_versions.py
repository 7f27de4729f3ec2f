"""Tests of steadysum.environment.versions: the order of versions, and ranges."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadysum.environment.versions import parse_range, version_key
from steadysum.errors import RangeError

# Of the vendor's toolkit, his driver, and Python packages, each in the order in which they came out.
IN_ORDER = (
    ("5.0.5.alpha001", "5.0.5", "5.1.RC1", "5.1.RC2.alpha001", "5.1.RC2", "5.1.RC2.1", "5.1", "6.0.RC1", "6.0.1"),
    ("8.0.RC2.alpha002", "8.0.RC2", "8.0.RC3", "8.0.0", "8.1.RC1.beta1", "8.1.RC1", "8.5.0", "9.0.0-beta.1", "9.0.0"),
    ("24.1.rc2", "24.1.rc3", "24.1.rc3.7", "24.1.0", "25.0.rc1", "25.0.rc1.1", "25.2.0"),
    ("1.9", "1.10", "1.11.0rc1", "1.11.0", "1.11.0.post1", "2.7.1.post2", "2.7.1.post11", "2.13.0.dev1", "2.13.0"),
)


@pytest.mark.parametrize("versions", IN_ORDER, ids=lambda versions: versions[-1])
def test_versions_are_in_the_order_in_which_they_came_out(versions: tuple[str, ...]) -> None:
    assert sorted(versions, key=version_key) == list(versions)
    keys = [version_key(version) for version in versions]
    assert all(before < after for before, after in pairwise(keys))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5.1", "5.1.0"),
        ("2.13.0+cpu", "2.13.0"),
        ("CANN-8.0.RC1", "8.0.rc1"),
        ("v1.17.3", "1.17.3"),
        ("5.1rc2", "5.1.RC2"),
    ],
)
def test_spellings_of_one_version_are_equal(one: str, other: str) -> None:
    assert version_key(one) == version_key(other)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_versions_of_numbers_alone_order_as_their_numbers(one: list[int], other: list[int]) -> None:
    padded = [[*numbers, *[0] * (4 - len(numbers))] for numbers in (one, other)]
    keys = [version_key(".".join(map(str, numbers))) for numbers in (one, other)]
    assert (keys[0] < keys[1]) == (padded[0] < padded[1])
    assert (keys[0] == keys[1]) == (padded[0] == padded[1])


@pytest.mark.parametrize("text", ["", "unknown", "N/A", "1.2.green", "1.2!"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(RangeError, match=re.escape(f"version: got {text!r}; allowed: numbers and words such as rc")):
        version_key(text)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("< 5.1.RC2", ("5.1.RC1", "5.0.5"), ("5.1.RC2", "5.1", "8.0.0")),
        (">= 2.13, < 2.14", ("2.13.0", "2.13.1+cu126"), ("2.12.9", "2.14.0")),
        ("== 2.13.*", ("2.13", "2.13.0+cpu", "2.13.1.post2"), ("2.12.0", "2.130.0", "2.1.3")),
        ("!= 2.13.*", ("2.12.0",), ("2.13.0",)),
        ("== 910B* or == 910_93*", ("910B3", "910_9392"), ("310P3", "950")),
        ("< 1.2 or >= 1.4, < 1.5", ("1.1", "1.4.9"), ("1.2", "1.3", "1.5")),
        ("*", ("0.1", "anything"), ()),
    ],
)
def test_a_range_has_what_it_says(text: str, inside: tuple[str, ...], outside: tuple[str, ...]) -> None:
    parsed = parse_range(text)
    assert [version for version in inside if not parsed.has(version)] == []
    assert [version for version in outside if parsed.has(version)] == []


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "'' isn't such a condition."),
        ("2.13", "'2.13' isn't such a condition."),
        ("< 2.13,", "'' isn't such a condition."),
        ("~= 2.13", "'~= 2.13' isn't such a condition."),
        ("< 2.*", "A * can only stand after == or !=."),
    ],
)
def test_a_malformed_range_is_refused(text: str, remedy: str) -> None:
    with pytest.raises(RangeError) as caught:
        parse_range(text)
    assert str(caught.value).startswith(f"range: got {text!r}; allowed: conditions such as < 5.1.RC2")
    assert caught.value.remedy == remedy


def test_a_range_of_a_malformed_version_is_refused() -> None:
    with pytest.raises(RangeError, match="'green' isn't a word that versions have"):
        parse_range("< 5.1.green")
