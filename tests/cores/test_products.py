"""Product buffers under the policies that prove what they read: a half tile that isn't whole is never used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from steadysum.cores.faults import Arm
from steadysum.errors import StaleRead
from steadysum.sync.records import digest

from .operators import POLICIES, call, device, given, same_bits

OPERANDS = given(40, 5, 100, seed=3)
BROKEN = ("dropped", "torn", "stale", "unwritten", "reordered", "flip")


def arm(kind: str, rest: str = "") -> Arm:
    """A fault of core 1's product buffers on their way; stale for all of the buffers' history."""
    extra = {"stale": ",age=9", "flip": ",at=write", "unwritten": ",part=all"}.get(kind, "")
    return Arm.parse(f"{kind}:site=product,core=1{extra}{rest}")


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_product_that_is_broken_once_is_healed(policy: str, kind: str) -> None:
    on = device(policy, 3, faults=(arm(kind, ",most=1"),))
    assert same_bits(call(on, OPERANDS), call(device(policy, 3), OPERANDS))
    assert sum(on.fault_counts().values()) == 1


@pytest.mark.parametrize("kind", ["dropped", "torn", "stale", "unwritten", "flip"])
def test_a_product_that_is_broken_always_is_raised_and_names_its_core(kind: str) -> None:
    on = device("enhanced", 3, faults=(arm(kind),))
    with pytest.raises(StaleRead, match="record of core 1 in call") as caught:
        call(on, OPERANDS)
    assert caught.value.cores == (1,)


def test_logits_that_change_after_the_last_step_are_computed_again() -> None:
    fault = Arm.parse("flip:site=product[0:100],at=end,most=1")
    on, clean = device("enhanced", 3, faults=(fault,)), device("enhanced", 3)
    found, expected = (each.fused_linear_online_max_sum(*OPERANDS, 0, 100, True) for each in (on, clean))
    assert sum(on.fault_counts().values()) == 1
    assert on.last is not None
    assert on.last.retries == 1
    assert same_bits((found.vocab_parallel_logits,), (expected.vocab_parallel_logits,))  # type: ignore[arg-type]


@drawn(
    size=st.integers(1020, 1100),
    seed=st.integers(0, 99),
    places=st.sets(st.integers(0, 1019), min_size=1, max_size=6),
    bit=st.integers(0, 31),
)
def test_the_digest_of_a_large_payload_sees_equal_bits_flipped_in_several_words(
    size: int, seed: int, places: set[int], bit: int
) -> None:
    before = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    after = before.copy()
    after.view(np.uint32)[list(places)] ^= np.uint32(1 << bit)
    assert digest(1, 0, 1, (before,)) != digest(1, 0, 1, (after,))
    assert digest(1, 0, 1, (before,)) == digest(1, 0, 1, (before.copy(),))


def test_the_digest_of_a_large_payload_sees_its_last_bytes_and_two_words_that_change_places() -> None:
    before = np.arange(5001, dtype=np.uint8)
    ends, swapped = before.copy(), before.copy()
    ends[-1] ^= 1
    swapped[:8], swapped[8:16] = before[8:16], before[:8]
    assert len({digest(1, 0, 1, (each,)) for each in (before, ends, swapped)}) == 3
