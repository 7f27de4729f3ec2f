"""Which cores an error names: the one at fault, and beside it at most the other side of a read."""

from __future__ import annotations

import pickle

import pytest

from steadysum.cores.faults import Arm
from steadysum.cores.outcomes import SCENARIOS, Scenario
from steadysum.errors import StaleRead, SyncTimeout

from .operators import ORDERS, POLICIES, call, device, given, same_bits

OPERANDS = given(40, 5, 100, seed=3)


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize("reader", [0, 1])
def test_a_readers_fault_names_the_reader_beside_the_writer(policy: str, reader: int) -> None:
    on = device(policy, 3, faults=(Arm.parse(f"stale:site=max,core={reader},phase=P3,age=9"),))
    with pytest.raises(StaleRead, match=rf"record of core \d in call \d, read by core {reader} v\d") as caught:
        call(on, OPERANDS)
    error = caught.value
    assert error.writer is not None
    assert error.writer != reader or error.reader is None
    assert error.cores == tuple(sorted({error.writer, reader}))
    assert ("its" if error.reader is None else f"core {reader}'s") + " reads don't see them" in str(error)


def test_a_writers_fault_that_its_read_back_shows_names_the_writer_alone() -> None:
    on = device("enhanced", 3, faults=(Arm.parse("dropped:site=sum,core=2"),))
    with pytest.raises(StaleRead, match="record of core 2 in call 4, written and read back by core 2") as caught:
        call(on, OPERANDS)
    assert (caught.value.cores, caught.value.writer, caught.value.reader) == ((2,), 2, None)


def test_a_writers_fault_that_only_others_can_see_names_both() -> None:
    """Without retries: what drains after a launch has ended is there in the next one."""
    arm = Arm.parse("reordered:site=max,core=1,microseconds=1e9")
    on = device("enhanced", 3, faults=(arm,), settings={"max_retries": 0})
    with pytest.raises(StaleRead, match="record of core 1 in call 1, read by core 0") as caught:
        call(on, OPERANDS)
    assert (caught.value.cores, caught.value.writer, caught.value.reader) == ((0, 1), 1, 0)


def test_an_error_of_a_read_survives_pickling() -> None:
    error = StaleRead("what", "seen", "allowed", "remedy", (0, 1), 1, 0)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.cores, again.writer, again.reader) == (str(error), (0, 1), 1, 0)


@pytest.mark.parametrize("site", ["heartbeat", "tiles", "exit", "tile ready", "buffer free"])
@pytest.mark.parametrize("order", ORDERS)
def test_with_one_retry_a_wiped_flag_is_nobodys_fault(site: str, order: str) -> None:
    expected = call(device("enhanced", 3), OPERANDS)
    for seed in range(2):
        arm = Arm.parse(f"reset:site={site},core=1,most=1")
        on = device("enhanced", 3, order=order, seed=seed, faults=(arm,), settings={"max_retries": 1})
        assert same_bits(call(on, OPERANDS), expected)


def test_a_core_that_waited_in_vain_at_a_barrier_is_still_awaited_at_the_exit() -> None:
    """Its flags wiped without retries, core 1's partners wait out; they come that much later to the exit."""
    for seed in range(5):
        for order in ORDERS:
            arm = Arm.parse("reset:site=tiles,core=1,most=1")
            on = device("enhanced", 3, order=order, seed=seed, faults=(arm,), settings={"max_retries": 0})
            assert same_bits(call(on, OPERANDS), call(device("enhanced", 3), OPERANDS))


def test_whoever_can_raise_has_a_core_that_must_be_named() -> None:
    """But for faults of no core: the layout's, the host's, the program's, and a reset, which a retry makes good."""
    of_no_core = {"reset", "dirty", "crosstalk", "tail", "flip"}
    for scenario in SCENARIOS:
        arm = Arm.parse(scenario.arm)
        if arm.kind not in of_no_core or arm.core is not None:
            assert scenario.named == (arm.core,) or scenario.name == "duplicated", scenario.name


@pytest.mark.parametrize(
    ("cores", "right"), [((1,), True), ((0, 1), True), ((0,), False), ((0, 2), False), ((0, 1, 2), False), ((), False)]
)
def test_naming_is_judged_by_who_is_at_fault_and_who_may_stand_beside(cores: tuple[int, ...], right: bool) -> None:
    beside = Scenario("", "", "", (1,), beside=True)
    assert beside.is_named_right(cores) is right
    assert beside._replace(beside=False).is_named_right(cores) is (cores == (1,))
    assert beside._replace(named=()).is_named_right(cores)


def test_a_timeout_names_only_who_did_not_come() -> None:
    on = device("enhanced", 3, faults=(Arm.parse("dead:core=2,phase=P2"),))
    with pytest.raises(SyncTimeout) as caught:
        call(on, OPERANDS)
    assert caught.value.cores == (2,)
