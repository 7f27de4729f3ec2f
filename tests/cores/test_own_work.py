"""A unit's own work under the policies that prove it: what never agrees with itself is raised, not returned."""

from __future__ import annotations

import pytest

from steadysum.cores.faults import Arm
from steadysum.errors import AccuracyError, TraceNotFoundError

from .operators import call, device, given, same_bits

OPERANDS = given(40, 5, 100, seed=3)


@pytest.mark.parametrize("policy", ["verified", "duplicated"])
@pytest.mark.parametrize(("site", "core"), [("statistics", 1), ("merge", 1), ("combine", 1), ("target", 0)])
def test_work_that_differs_whenever_it_is_done_is_raised_and_names_its_core(policy: str, site: str, core: int) -> None:
    arm = Arm.parse(f"flip:site={site},core={core},bits=exponent")
    on = device(policy, 3, faults=(arm,))
    with pytest.raises(AccuracyError, match="no two of which are equal") as caught:
        call(on, OPERANDS)
    assert caught.value.cores == (core,)
    assert sum(on.fault_counts().values()) > 0


@pytest.mark.parametrize("policy", ["verified", "duplicated"])
def test_without_retries_two_results_that_differ_are_raised_and_the_next_call_is_right(policy: str) -> None:
    arm = Arm.parse("flip:site=statistics,core=1,bits=exponent,most=1")
    on = device(policy, 3, faults=(arm,), settings={"max_retries": 0})
    with pytest.raises(AccuracyError, match="no two of which are equal") as caught:
        call(on, OPERANDS)
    assert caught.value.cores == (1,)
    assert same_bits(call(on, OPERANDS), call(device(policy, 3), OPERANDS))  # the fault has acted its once


def test_a_device_that_keeps_no_log_refuses_to_speak_of_hazards_and_traces() -> None:
    on = device("legacy", 3, keeps_log=False)
    call(on, OPERANDS)
    with pytest.raises(TraceNotFoundError, match="hazards of a call: got a device that keeps no log"):
        on.hazards()
    with pytest.raises(TraceNotFoundError, match="trace of a call: got a device that keeps no log"):
        on.trace()
