"""What a fault may name is what the device has: each site that is allowed is met in a call, and no other is allowed."""

from __future__ import annotations

import pytest

from steadysum.cores.fault_sites import REGIONS, check_arm, sites_of
from steadysum.cores.faults import KINDS, Arm
from steadysum.cores.job import PHASES
from steadysum.cores.outcomes import SCENARIOS
from steadysum.errors import RangeError
from steadysum.sync.actions import Await, Barrier, Compute

from .operators import POLICIES, call, device, given

OPERANDS = given(40, 5, 100)


@pytest.mark.parametrize("policy", range(4))
def test_the_sites_are_those_of_the_devices_calls(policy: int) -> None:
    on = device(POLICIES[policy], 3)
    call(on, OPERANDS)
    assert on.last is not None
    actions = [entry.action for run in on.last.runs for entry in run.log]
    syncs = {action.own.name for action in actions if isinstance(action, Barrier)}
    syncs |= {flag.name for action in actions if isinstance(action, Await) for flag in action.flags}
    assert set(sites_of("delay", policy)) == syncs
    labels = {action.label for action in actions if isinstance(action, Compute)} - {"checksum"}
    assert labels <= set(sites_of("flip", policy))
    assert set(on._memory.regions) == set(REGIONS)
    phases = {action.place.phase for action in actions if action is not None}
    assert phases <= set(PHASES)


def test_the_arms_of_the_table_are_allowed_under_every_policy() -> None:
    for scenario in SCENARIOS:
        for policy in range(4):
            check_arm(Arm.parse(scenario.arm), 3, policy)


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_that_there_is_not_is_refused_with_those_that_there_are(kind: str) -> None:
    sites = sites_of(kind, 1)
    if not KINDS[kind].takes_site or KINDS[kind].fixed_sites:  # an arm of these refuses it by itself
        with pytest.raises(RangeError, match=f"site of {kind}"):
            Arm(kind, site="nowhere")
        return
    with pytest.raises(RangeError) as refused:
        check_arm(Arm(kind, site="nowhere"), 3, 1)
    assert f"got 'nowhere'; allowed: {', '.join(sites)}" in str(refused.value)
    for site in sites:
        check_arm(Arm(kind, site=site), 3, 1)


@pytest.mark.parametrize(
    ("arm", "text"),
    [
        ("dropped:core=3", "core of fault dropped:core=3: got 3; allowed: 0 to 2. Leave it out for any core."),
        ("dropped:role=v2", "got 'v2'; allowed: cube, v0, v1."),
        ("dropped:phase=P2 tile", "got 'P2 tile'; allowed: P0 init, P0, init, P1 target"),
        ("dropped:site=summ[0:4]", "got 'summ'; allowed: product, product_stamp, max, sum"),
        ("overrun:site=init", "got 'init'; allowed: tiles, exit, heartbeat, tile ready, buffer free."),
    ],
)
def test_what_the_device_does_not_have_is_refused(arm: str, text: str) -> None:
    with pytest.raises(RangeError) as refused:
        check_arm(Arm.parse(arm), 3, 1)
    assert text in str(refused.value)
