"""Tests of steadysum.cores.faults on small programs: what each kind does where it is armed, and no more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from steadysum.cores.faults import Arm
from steadysum.sync.actions import Action, Add, Await, Barrier, Compute, Fence, Flag, Place, Read, Signal, Word, Write
from steadysum.sync.memory import Memory, Span
from steadysum.trace.events import Unit

from .faulty import P2, A, B, Played, floats, place, run

X = Span("x", 0, 4)
NEW = floats(1, 2, 3, 4)
REGIONS = (("x", np.float32, 4), ("y", np.float32, 4))
READY, DONE = Flag("ready", 0, "v0"), Flag("done", 1, "v0")


def write(span: Span = X, values: Any = NEW, where: Place = P2) -> Write:
    return Write(where, (Word(span, np.asarray(values, dtype=np.float32)),))


def wait(flag: Flag, value: int = 1, timeout: float | None = 1e3) -> Await:
    return Await(P2, (flag,), value, timeout)


def work(label: str, cost: float = 1.0, result: Any = None, where: Place = P2) -> Compute:
    return Compute(where, lambda: result, cost, label)


def messages(work_first: float = 1.0) -> dict[Unit, list[Action]]:
    """A passes x to B: write, fence, signal; await, read."""
    return {A: [work("late", work_first), write(), Fence(P2), Signal(P2, READY, 1)], B: [wait(READY), Read(P2, (X,))]}


def what_b_read(played: Played) -> list[float]:
    return played.results[B][-1][0].tolist()  # type: ignore[no-any-return]


def counted(played: Played) -> list[int]:
    return list(played.armed.counts().values())


def test_without_arms_the_message_arrives() -> None:
    played = run(messages(), REGIONS)
    assert what_b_read(played) == NEW.tolist()
    assert played.armed.counts() == {}


# ---- where and how often --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "knobs",
    [
        {"core": 1},
        {"role": "v1"},
        {"phase": "P1"},
        {"phase": "P"},
        {"site": "y"},
        {"site": "x[4:8]"},
        {"calls": 2},
        {"most": 0},
        {"probability": 0.0},
    ],
    ids=str,
)
def test_a_fault_armed_elsewhere_never_acts_and_shows_0(knobs: dict[str, Any]) -> None:
    played = run(messages(), REGIONS, Arm("dropped", **knobs))
    assert what_b_read(played) == NEW.tolist()
    assert counted(played) == [0]
    assert "f" not in str(played.run.schedule)


@pytest.mark.parametrize(
    "knobs",
    [
        {"core": 0},
        {"role": "v0"},
        {"phase": "P2"},
        {"phase": "tiles"},
        {"phase": "P2 tiles"},
        {"site": "x"},
        {"site": "x[3:4]"},
        {"calls": 1},
        {"most": 1},
    ],
    ids=str,
)
def test_a_fault_armed_here_acts_and_is_counted(knobs: dict[str, Any]) -> None:
    played = run(messages(), REGIONS, Arm("dropped", **knobs))
    assert what_b_read(played) == [0, 0, 0, 0]
    assert counted(played) == [1]
    assert "f0.0 s0" in str(played.run.schedule)


def test_most_limits_how_often_it_acts() -> None:
    actions = [write(values=[number] * 4) for number in range(1, 6)]
    played = run({A: actions}, REGIONS, Arm("dropped", most=2))
    assert counted(played) == [2]
    assert played.memory.arrays["x"].tolist() == [5] * 4
    assert list(played.armed.offers().values()) == [5]


def test_calls_are_counted_by_the_host_where_it_tells_them_and_else_by_epochs() -> None:
    actions = [write(values=[epoch] * 4, where=place(epoch)) for epoch in (1, 2, 3)]
    played = run({A: actions}, REGIONS, Arm("dropped", calls=(2, None)))
    assert counted(played) == [2]
    armed = played.armed
    armed.begin_call(1, 9)  # the first call; its ninth launch
    assert armed.written(A, write(where=place(9)))
    armed.begin_call(2, 10)
    assert not armed.written(A, write(where=place(10)))


def test_equal_arms_are_added_up_under_their_text() -> None:
    played = run({A: [write(), write()]}, REGIONS, Arm("dropped", most=1), Arm("dropped", most=1))
    assert played.armed.counts() == {"dropped:most=1": 2}


# ---- words on their way to memory -----------------------------------------------------------------------------------


def test_dropped_takes_the_armed_region_of_a_record_alone() -> None:
    record = Write(P2, (Word(X, NEW), Word(Span("y", 0, 4), NEW)))
    played = run({A: [record]}, REGIONS, Arm("dropped", site="y"))
    assert played.memory.arrays["x"].tolist() == NEW.tolist()
    assert played.memory.arrays["y"].tolist() == [0] * 4


@pytest.mark.parametrize(("kind", "total"), [("dropped", 1.0), ("duplicated", 3.0)])
def test_an_add_is_dropped_or_counted_twice(kind: str, total: float) -> None:
    add = Add(P2, Word(Span("x", 0, 1), floats(1)))
    played = run({A: [add, add]}, REGIONS, Arm(kind, site="x", most=1))
    assert played.memory.arrays["x"][0] == total
    assert counted(played) == [1]


@pytest.mark.parametrize(("new", "position"), [("first", 3), ("last", 3), ("first", 5), ("last", 12), ("first", -1)])
def test_a_torn_record_is_new_on_one_side_of_the_byte_and_old_on_the_other(new: str, position: int) -> None:
    old, fresh = np.full(8, 0x11, np.uint8), np.full(8, 0x22, np.uint8)
    regions = (("p", np.uint32, 2), ("q", np.uint32, 2))
    spans = [Span("p", 0, 2), Span("q", 0, 2)]

    def record(content: np.ndarray[Any, Any]) -> Write:
        return Write(P2, tuple(Word(span, content.view(np.uint32)) for span in spans))

    actions: list[Action] = [record(old), Fence(P2), Signal(place(2), READY, 1), record(fresh)._replace(place=place(2))]
    played = run({A: actions}, regions, Arm("torn", calls=2, position=position, new=new))
    cut = 8 if position < 0 else position  # the middle of 16 bytes
    found = played.bytes_of("p") + played.bytes_of("q")
    before, after = (0x22, 0x11) if new == "first" else (0x11, 0x22)
    assert found == [before] * cut + [after] * (16 - cut)
    assert counted(played) == [1]


def test_a_record_that_ends_before_the_byte_is_not_torn() -> None:
    played = run({A: [write()]}, REGIONS, Arm("torn", position=16))
    assert played.memory.arrays["x"].tolist() == NEW.tolist()
    assert counted(played) == [0]


@pytest.mark.parametrize(
    ("part", "count", "unwritten"), [("tail", 3, 3), ("rows", 2, 2), ("rows", 99, 8), ("all", 1, 8)]
)
def test_unwritten_leaves_elements_of_outputs_as_they_were(part: str, count: int, unwritten: int) -> None:
    regions = (("out_max", np.float32, 8), ("out_sum", np.float32, 8), ("max", np.float32, 8))
    record = Write(P2, tuple(Word(Span(name, 0, 8), np.ones(8, np.float32)) for name, *_ in regions))
    played = run({A: [record]}, regions, Arm("unwritten", part=part, count=count))
    arrays = played.memory.arrays
    assert np.count_nonzero(arrays["out_max"] == 0) == unwritten
    assert arrays["out_sum"].tolist() == arrays["out_max"].tolist()  # the same rows of every output
    assert arrays["max"].tolist() == [1] * 8
    if part == "tail":
        assert arrays["out_max"].tolist() == [1] * 5 + [0] * 3
    assert counted(played) == [1]


def test_reordered_lets_the_flag_be_seen_before_the_data() -> None:
    played = run(messages(), REGIONS, Arm("reordered", site="x"))
    assert what_b_read(played) == [0, 0, 0, 0]
    assert played.memory.arrays["x"].tolist() == NEW.tolist()  # late, not lost
    assert counted(played) == [1]


@pytest.mark.parametrize(("own", "seen"), [(False, NEW.tolist()), (True, [0.0] * 4)])
def test_reordered_hides_a_units_own_words_from_it_only_where_that_is_armed(own: bool, seen: list[float]) -> None:
    played = run({A: [write(), work("between", 10.0), Read(P2, (X,))]}, REGIONS, Arm("reordered", own=own))
    assert played.results[A][-1][0].tolist() == seen


def test_a_fence_works_again_when_the_held_words_are_in_memory() -> None:
    later = write(Span("y", 0, 4))
    actions = [write(), work("long", 2e3), later, Fence(P2), Signal(P2, READY, 1)]
    programs = {A: actions, B: [wait(READY, timeout=None), Read(P2, (X, later.words[0].span))]}
    played = run(programs, REGIONS, Arm("reordered", site="x", microseconds=1e3))
    assert [part.tolist() for part in played.results[B][-1]] == [NEW.tolist()] * 2


# ---- reads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "expected"), [(1, 20.0), (2, 10.0), (3, 0.0), (9, 0.0)])
def test_stale_gives_what_the_slot_held_when_an_earlier_call_ended(age: int, expected: float) -> None:
    actions: list[Action] = []
    for epoch in (1, 2, 3):
        where = place(epoch)
        actions += [write(values=[10 * epoch - 5] * 4, where=where), Fence(where)]  # not what the call ends with
        actions += [write(values=[10 * epoch] * 4, where=where), Fence(where), Read(where, (X,))]
    played = run({A: actions}, REGIONS, Arm("stale", site="x", calls=3, age=age))
    assert [found[0].tolist() for found in played.results[A] if found] == [[10] * 4, [20] * 4, [expected] * 4]
    assert counted(played) == [1]
    assert played.memory.arrays["x"].tolist() == [30] * 4  # the reader is wrong, memory isn't


def test_a_stale_read_of_a_slot_that_has_not_changed_is_none() -> None:
    actions = [write(), Fence(P2), Read(place(2), (X,))]
    played = run({A: actions}, REGIONS, Arm("stale", calls=2))
    assert played.results[A][-1][0].tolist() == NEW.tolist()
    assert counted(played) == [0]


def test_a_stale_read_takes_the_armed_region_of_a_record_alone() -> None:
    both = (X, Span("y", 0, 4))
    actions = [write(), write(both[1]), Fence(P2), Read(P2, both)]
    found = run({A: actions}, REGIONS, Arm("stale", site="y")).results[A][-1]
    assert [part.tolist() for part in found] == [NEW.tolist(), [0] * 4]


# ---- sync points ----------------------------------------------------------------------------------------------------


def barrier(unit: Unit, epoch: int = 1, name: str = "tiles", units: Sequence[Unit] = (A, B)) -> Barrier:
    flags = {member: Flag(name, member.core, member.role) for member in units}
    return Barrier(place(epoch), flags[unit], tuple(flags.values()), epoch, 1e3)


def outcomes(played: Played, unit: Unit) -> list[str]:
    """How the unit's waits ended."""
    number = played.run.units.index(unit)
    waits = [e for e in played.run.log if e.unit == number and isinstance(e.action, Await | Barrier) and not e.what]
    return [entry.outcome for entry in waits]


def test_a_delay_at_a_barrier_makes_the_others_wait_in_vain() -> None:
    played = run({unit: [barrier(unit)] for unit in (A, B)}, REGIONS, Arm("delay", core=0, microseconds=2e3))
    assert (outcomes(played, A), outcomes(played, B)) == (["ok"], ["timeout"])
    assert counted(played) == [1]
    (sleep,) = [entry for entry in played.run.log if entry.what == "fault"]
    assert (played.run.units[sleep.unit], sleep.end - sleep.begin) == (A, 2e3)


def test_a_delay_at_a_flag_makes_its_signal_late() -> None:
    played = run(messages(), REGIONS, Arm("delay", site="ready", core=0, microseconds=2e3))
    assert outcomes(played, B) == ["timeout"]
    assert counted(played) == [1]


def test_a_delay_at_another_barrier_changes_nothing() -> None:
    programs = {unit: [barrier(unit)] for unit in (A, B)}
    played = run(programs, REGIONS, Arm("delay", site="init"))
    assert counted(played) == [0]
    assert str(played.run.schedule) == str(run(programs, REGIONS).run.schedule)


@pytest.mark.parametrize(
    ("distribution", "middle"), [("fixed", 100.0), ("lognormal", 100.0), ("exponential", 100.0 * math.log(2))]
)
def test_delays_have_their_distributions_median(distribution: str, middle: float) -> None:
    actions = [barrier(A, epoch, units=(A,)) for epoch in range(1, 401)]
    played = run({A: actions}, REGIONS, Arm("delay", distribution=distribution, microseconds=100.0))
    lengths = [entry.end - entry.begin for entry in played.run.log if entry.what == "fault"]
    assert len(lengths) == counted(played)[0] == 400
    if distribution == "fixed":
        assert lengths == pytest.approx([middle] * 400)
    else:  # 400 coins show 150 to 250 heads, but for odds of 1e-6
        assert 150 < sum(length < middle for length in lengths) < 250


@pytest.mark.parametrize("site", ["ready", "buffer free"])
def test_overrun_goes_on_before_the_flag(site: str) -> None:
    programs = messages(work_first=100.0)
    played = run(programs, REGIONS, Arm("overrun", site=site))
    early = site == "ready"
    assert what_b_read(played) == ([0] * 4 if early else NEW.tolist())
    assert counted(played) == [int(early)]


def test_overrun_without_a_site_acts_on_buffers_and_the_exit_alone() -> None:
    names = ("tiles", "exit", "buffer free", "tile ready")
    for name in names:
        waits = {
            A: [Await(P2, (Flag(name, 1, "v0"),), 1, 1e3)],
            B: [work("late", 10.0), Signal(P2, Flag(name, 1, "v0"), 1)],
        }
        assert counted(run(waits, REGIONS, Arm("overrun"))) == [int(name in ("exit", "buffer free"))], name


def test_an_overrun_can_lead_by_several_waits() -> None:
    waits = [wait(READY, value) for value in (1, 2, 3)]
    signals = [action for value in (1, 2, 3) for action in (work("late", 10.0), Signal(P2, READY, value))]
    played = run({A: signals, B: waits}, REGIONS, Arm("overrun", site="ready", most=1, lead=2))
    assert counted(played) == [2]
    begins = [entry.end for entry in played.run.log if entry.unit == 1]
    assert begins[0] == begins[1] == 0.0 < begins[2]


def test_a_barrier_that_is_none_lets_everybody_pass() -> None:
    programs = {A: [work("late", 500.0), barrier(A)], B: [barrier(B)]}
    played = run(programs, REGIONS, Arm("overrun", site="tiles"))
    assert outcomes(played, B) == ["ok"]
    assert counted(played) == [1]  # A finds all flags there: there is nothing to overrun


def test_a_reset_wipes_early_arrivals() -> None:
    late = [work("late", 10.0), barrier(B)]
    played = run({A: [barrier(A)], B: late}, REGIONS, Arm("reset", core=1))
    assert (outcomes(played, A), outcomes(played, B)) == (["ok"], ["timeout"])
    assert played.results[B][-1] == (Flag("tiles", 0, "v0"),)  # B misses A, who was there first
    assert counted(played) == [1]


def test_a_reset_waits_for_its_batch() -> None:
    programs = {
        A: [barrier(A, epoch) for epoch in (1, 2, 3)],
        B: [action for epoch in (1, 2, 3) for action in (work("late", 10.0), barrier(B, epoch))],
    }
    played = run(programs, REGIONS, Arm("reset", core=1, batch=3))
    assert outcomes(played, B) == ["ok", "ok", "timeout"]
    assert counted(played) == [1]


def test_a_signal_can_be_reset_itself() -> None:
    played = run({A: [Signal(P2, READY, 1)], B: [work("later", 10.0), wait(READY, timeout=None)]}, REGIONS)
    assert played.run.stuck == ()
    arm = Arm("reset", site="ready", whose="own")
    played = run({A: [Signal(P2, READY, 1)], B: [work("later", 10.0), wait(READY, timeout=None)]}, REGIONS, arm)
    assert played.run.stuck == (B,)
    assert counted(played) == [1]


# ---- own work -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flip", "scale"])
def test_work_of_the_armed_label_is_spoilt_and_no_other(kind: str) -> None:
    labels = ("product", "statistics", "merge")
    played = run({A: [work(label, result=NEW) for label in labels]}, REGIONS, Arm(kind, site="statistics"))
    changed = [found.tolist() != NEW.tolist() for found in played.results[A]]
    assert changed == [False, True, False]
    assert NEW.tolist() == [1, 2, 3, 4]  # what the work returned isn't touched: a copy is
    assert counted(played) == [1]


def test_one_array_of_several_is_spoilt_and_the_form_is_kept() -> None:
    pair = Word(X, NEW)._replace(span=floats(5, 6))  # type: ignore[arg-type]  # a NamedTuple of two arrays
    (found,) = run({A: [work("merge", result=pair)]}, REGIONS, Arm("scale", factor=2.0, elements=0)).results[A]
    assert isinstance(found, Word)
    halves = (found.span.tolist(), found.values.tolist())  # type: ignore[attr-defined]
    assert halves in (([10, 12], NEW.tolist()), ([5, 6], [2, 4, 6, 8]))


def test_work_that_gives_no_arrays_cannot_be_spoilt() -> None:
    played = run({A: [work("checksum", result=True), work("wait")]}, REGIONS, Arm("flip"))
    assert played.results[A] == [True, None]
    assert list(played.armed.offers().values()) == [0]


def test_a_change_that_changes_no_bits_is_not_counted() -> None:
    played = run({A: [work("merge", result=floats(0, 0))]}, REGIONS, Arm("scale", factor=2.0))
    assert counted(played) == [0]


@pytest.mark.parametrize("site", ["x", "x[1:2]"])
def test_words_of_the_armed_elements_are_spoilt_on_their_way(site: str) -> None:
    arm = Arm("scale", site=site, at="write", factor=3.0)
    for seed in range(8):
        played = run({A: [write(), write(Span("y", 0, 4))]}, REGIONS, arm, seed=seed)
        found = played.memory.arrays["x"]
        (changed,) = np.flatnonzero(found != NEW)
        assert found[changed] == 3 * NEW[changed]
        assert site == "x" or changed == 1
        assert played.memory.arrays["y"].tolist() == NEW.tolist()


# ---- units ----------------------------------------------------------------------------------------------------------

CORE = [Unit(1, role) for role in ("cube", "v0", "v1")]


def busy(pieces: int = 4, cost: float = 10.0) -> list[Action]:
    return [work(f"piece {number}", cost) for number in range(pieces)]


def test_a_dead_core_is_dead_with_all_of_its_units() -> None:
    programs = {unit: busy() for unit in (A, *CORE)}
    played = run(programs, REGIONS, Arm("dead", core=1, probability=0.9, most=1), seed=1)
    assert set(played.run.dead) == set(CORE)
    assert list(played.results) == [A]
    assert counted(played) == [3]


def test_one_unit_can_die_alone() -> None:
    played = run({unit: busy() for unit in (A, *CORE)}, REGIONS, Arm("dead", core=1, role="v0"))
    assert played.run.dead == (Unit(1, "v0"),)
    assert counted(played) == [1]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_unit_dies_after_so_many_actions_of_the_phase(after: int) -> None:
    actions = [work("before", where=place(phase=1)), *busy(), work("combine", where=place(phase=3))]
    played = run({A: actions}, REGIONS, Arm("dead", phase="P2", after=after))
    done = [entry.action.label for entry in played.run.log if isinstance(entry.action, Compute)]
    assert done == ["before", *(f"piece {number}" for number in range(after))]


def test_a_dead_core_stays_dead_in_later_calls_that_the_arm_covers() -> None:
    played = run({A: busy(), B: busy()}, REGIONS, Arm("dead", core=1, phase="P2", calls=(1, 2), most=1))
    armed = played.armed
    for call, dead in ((1, True), (2, True), (3, False)):
        armed.begin_call(call, call)
        armed.begin_run(Memory(REGIONS))
        armed.begin_step(None)
        assert armed.dies(B, place(call, phase=0)) is dead
        assert not armed.dies(A, place(call, phase=0))


def test_a_core_that_comes_back_goes_on_where_it_was() -> None:
    programs = {unit: busy() for unit in CORE}
    played = run(programs, REGIONS, Arm("dead", comes_back=5e3, most=1))
    assert played.run.dead == ()
    assert set(played.results) == set(CORE)
    assert played.run.time > 5e3
    assert counted(played) == [3]  # each of its units once


@pytest.mark.parametrize("factor", [1.0, 7.0])
def test_a_slow_core_takes_so_many_times_as_long(factor: float) -> None:
    programs = {A: [*busy(), Read(P2, (X,))], B: [*busy(), Read(P2, (X,))]}
    played = run(programs, REGIONS, Arm("slow", core=1, factor=factor))
    ends = {unit: max(entry.end for entry in played.run.log if entry.unit == unit.core) for unit in (A, B)}
    assert ends[B] == pytest.approx(factor * ends[A])
    assert counted(played) == [1]


def test_slow_cores_are_drawn_once_and_stay_slow() -> None:
    units = [Unit(core, role) for core in range(40) for role in ("v0", "v1")]
    actions = [work("piece", where=place(epoch)) for epoch in (1, 2, 3)]
    played = run(dict.fromkeys(units, actions), REGIONS, Arm("slow", probability=0.5))
    slow: list[set[Unit]] = [set(), set(), set()]
    for entry in played.run.log:
        if entry.end - entry.begin > 5.0:
            assert entry.action is not None
            slow[entry.action.place.epoch - 1].add(played.run.units[entry.unit])
    assert slow[0] == slow[1] == slow[2]
    assert {(unit.core, role) for unit in slow[0] for role in ("v0", "v1")} == set(slow[0])  # whole cores
    assert 0 < len(slow[0]) < len(units)
    assert counted(played) == [3 * len(slow[0]) // 2]


# ---- what programs and their host ask -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "acting"), [(None, ["floor", "padding"]), ("floor", ["floor"]), ("padding", ["padding"])]
)
def test_a_programs_fault_acts_at_the_sites_that_ask(site: str | None, acting: list[str]) -> None:
    arm = Arm("tail", site=site)
    armed = run({}, REGIONS, arm).armed
    assert [name for name in ("floor", "padding") if armed.acts("tail", A, P2, name) is arm] == acting
    assert armed.acts("crosstalk", A, P2, "layout") is None
    assert list(armed.counts().values()) == [len(acting)]


@pytest.mark.parametrize("content", ["earlier", "nan", "pattern"])
def test_a_dirty_workspace_is_settled_once_a_call(content: str) -> None:
    regions = (("max", np.float32, 4), ("stamp", np.int64, 8), ("x", np.float32, 4))
    arm = Arm("dirty", content=content, core=1, calls=(2, None), most=1)
    armed, memory = run({}, regions, arm).armed, Memory(regions)
    for array in memory.arrays.values():
        array[:] = 7
    for call in (1, 2, 3):
        armed.begin_call(call, call)
        armed.begin_step(None)
        armed.spoil_workspace(memory, place(call, phase=0))
        asked = [armed.acts("dirty", unit, place(call, phase=0), "init") for unit in (A, B)]
        assert asked == [None, arm if call == 2 else None]
        if call == 1:
            assert memory.arrays["max"].tolist() == [7] * 4
    assert list(armed.counts().values()) == [1]
    assert memory.arrays["x"].tolist() == [7] * 4
    expected = {"earlier": floats(7), "nan": floats(np.nan), "pattern": np.full(4, 0xA5, np.uint8).view(np.float32)}
    assert memory.arrays["max"].tobytes() == np.repeat(expected[content], 4).tobytes()


def test_operands_and_outputs_are_spoilt_in_place_where_they_are_armed() -> None:
    regions = (("out_max", np.float32, 4), ("out_sum", np.float32, 4), ("max", np.float32, 4))
    arms = [Arm("scale", site="w", factor=2.0, elements=0), Arm("scale", at="end", factor=2.0, elements=0)]
    armed, memory = run({}, regions, *arms).armed, Memory(regions)
    operands = {"x": NEW.copy(), "w": NEW.copy()}
    for array in memory.arrays.values():
        array[:] = 1
    armed.spoil_operands(operands, place(phase=0))
    armed.spoil_outputs(memory, place(phase=3))
    assert {name: array.tolist() for name, array in operands.items()} == {"x": NEW.tolist(), "w": (2 * NEW).tolist()}
    ends = [memory.arrays[name].tolist() for name, *_ in regions]
    assert ends in ([[2] * 4, [1] * 4, [1] * 4], [[1] * 4, [2] * 4, [1] * 4])  # one of the outputs; max is none
    assert list(armed.counts().values()) == [1, 1]
