"""What is proven of the exchange protocol: each line of docs/protocol.md, and that the page holds what is explored."""

from __future__ import annotations

from pathlib import Path

import pytest

from steadysum.errors import StaleRead, SyncTimeout
from steadysum.sync.actions import Barrier, Fence, Flag, Note, Place
from steadysum.sync.exchange_lines import LINES, SLOW_LINES, Line, Row, explore_line, markdown
from steadysum.sync.exchange_model import returned
from steadysum.sync.policies import ENHANCED, PATIENCE, Party, Waits, finish
from steadysum.sync.virtual import Run, VirtualRunner
from steadysum.trace.events import Unit

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"

# What each part is needed for: the property that a policy without it breaks. All else that is asked holds.
NEEDED = {
    ("no fence", ""): "A",
    ("no fence, no stamp", ""): "S",
    ("no stamp", "dropped x 1"): "S",
    ("no stamp", "stale x 1"): "S",
    ("no stamp", "timeout x 1"): "S",
    ("no heartbeat", ""): "",  # the exit barrier does: nobody writes before all have read
    ("no exit barrier", ""): "",  # the heartbeat does
    ("no heartbeat, no exit barrier", ""): "A",
    ("no heartbeat, no exit barrier, no stamp", ""): "S",
    ("no bounded waits", "dead x 1"): "L",
    ("no heartbeat", "dead x 1"): "N",
    ("legacy", ""): "S",
}
BROKEN = [line for line in LINES if line.what != "enhanced"]


def name_of(line: Line) -> str:
    return f"{line.what}, {line.exchange.cores} x {line.exchange.epochs}, {line.armed or 'no fault'}"


@pytest.fixture(scope="module")
def rows() -> dict[Line, Row]:
    return {line: explore_line(line) for line in LINES}


def outcomes_of(row: Row) -> set[str]:
    return {unit for outcome in row.exploration.outcomes for unit in outcome.units}


def replayed(line: Line, row: Row, name: str) -> Run:
    faults = line.exchange.faults(*line.faults) if line.faults else None
    return VirtualRunner().replay(line.exchange.launch(faults), row.broken[name].schedule)


def test_every_part_that_must_be_shown_to_be_needed_is_a_line() -> None:
    assert {(line.what, line.armed) for line in BROKEN} == set(NEEDED)


@pytest.mark.parametrize("line", [line for line in LINES if line.what == "enhanced"], ids=name_of)
def test_enhanced_keeps_all_that_is_asked_in_every_state(rows: dict[Line, Row], line: Line) -> None:
    row = rows[line]
    assert row.exploration.complete
    assert row.held == line.asked
    assert row.exploration.deadlocks == 0
    print(name_of(line), row.exploration, "K =", row.exploration.most_actions)


@pytest.mark.parametrize("line", BROKEN, ids=name_of)
def test_enhanced_without_a_part_breaks_what_the_part_is_for_and_nothing_else(
    rows: dict[Line, Row], line: Line
) -> None:
    assert rows[line].exploration.complete
    assert list(rows[line].broken) == list(NEEDED[line.what, line.armed])


@pytest.mark.parametrize("line", [line for line in BROKEN if NEEDED[line.what, line.armed] == "S"], ids=name_of)
def test_a_wrong_result_replays_to_the_same_wrong_number(rows: dict[Line, Row], line: Line) -> None:
    example = rows[line].broken["S"]
    print(name_of(line), example.violation.what, example.schedule, sep="\n")
    unit, epoch, result = returned(replayed(line, rows[line], "S").log)[-1]
    assert result != line.exchange.wanted(epoch)
    assert example.violation.what == f"call {epoch} of core {unit} returned {result}, not {line.exchange.wanted(epoch)}"


@pytest.mark.parametrize("line", [line for line in BROKEN if NEEDED[line.what, line.armed] in ("A", "N")], ids=name_of)
def test_a_call_that_must_not_raise_replays_to_the_same_error(rows: dict[Line, Row], line: Line) -> None:
    name = NEEDED[line.what, line.armed]
    run = replayed(line, rows[line], name)
    ((unit, error),) = run.errors
    cores = ", ".join(map(str, error.cores))
    assert f"of {unit} raised {type(error).__name__} naming core {cores}" in rows[line].broken[name].violation.what
    assert len(error.cores) == (2 if isinstance(error, StaleRead) else 1)  # a read's: who wrote, and who read


def test_a_wait_without_end_replays_to_a_stuck_unit(rows: dict[Line, Row]) -> None:
    (line,) = (line for line in BROKEN if line.what == "no bounded waits")
    run = replayed(line, rows[line], "L")
    assert len(run.stuck) == len(run.dead) == 1


def test_legacy_goes_wrong_by_one_timeout_and_the_shortest_run_says_how(rows: dict[Line, Row]) -> None:
    (line,) = (line for line in BROKEN if line.what == "legacy")
    kinds = [choice.kind for choice in rows[line].broken["S"].schedule.choices]
    # write, begin to wait, time out, read both slots, fold, return: 7 choices of one core, and nothing of the other
    assert kinds == ["s", "s", "t", "s", "s", "s", "s"]
    run = replayed(line, rows[line], "S")
    ((unit, epoch, result),) = returned(run.log)
    assert result == line.exchange.payload(unit, epoch, 2)  # its own partial alone


@pytest.mark.parametrize("kind", ["dropped", "torn", "stale"])
def test_a_fault_that_acts_once_is_healed_by_the_retry(rows: dict[Line, Row], kind: str) -> None:
    (line,) = (line for line in LINES if line.what == "enhanced" and line.armed == f"{kind} x 1")
    assert outcomes_of(rows[line]) == {"returned [3, 12]"}


@pytest.mark.parametrize("kind", ["dropped", "torn", "stale"])
def test_a_fault_that_outlasts_the_retries_is_raised_and_never_returned(rows: dict[Line, Row], kind: str) -> None:
    for line in LINES:
        if line.what == "enhanced" and line.exchange.cores == 2 and line.armed == f"{kind} x 2":
            found = outcomes_of(rows[line])
            both = {f"raised {error} naming ({core},)" for error in ("StaleRead", "SyncTimeout") for core in (0, 1)}
            assert found - {"raised StaleRead naming (0, 1)"} == {"returned [3, 12]"} | both
            # What a core has written it reads back before anybody else does: another core's read alone can be stale.
            assert ("raised StaleRead naming (0, 1)" in found) == (kind == "stale")


def test_a_dead_core_is_named_by_the_others_and_nobody_else_is(rows: dict[Line, Row]) -> None:
    (line,) = (line for line in LINES if line.faults and line.exchange.cores == 3 and line.faults[0].kind == "dead")
    for outcome in rows[line].exploration.outcomes:
        dead = [core for core, unit in enumerate(outcome.units) if unit == "dead"]
        named = {unit for unit in outcome.units if unit.startswith("raised")}
        assert named <= {f"raised SyncTimeout naming ({core},)" for core in dead}


def test_an_exit_barrier_names_those_that_were_missing_before_and_not_those_that_wait_for_them() -> None:
    units = tuple(Unit(core, "core") for core in range(3))
    party = Party(units[0], units, 1, ENHANCED, Waits(1.0, 1.0, 0))
    exit_flags = [Flag("exit", core, "core") for core in (1, 2)]

    def error_with(before: tuple[Flag, ...]) -> SyncTimeout:
        program = finish(party, Place(1, 3, 0, "exit"), before)
        assert isinstance(program.send(None), Fence)
        assert isinstance(program.send(None), Barrier)
        for _ in range(PATIENCE - 1):
            assert isinstance(program.send(tuple(exit_flags)), Note)
            assert isinstance(program.send(None), Barrier)
        with pytest.raises(SyncTimeout) as caught:
            program.send(tuple(exit_flags))
        return caught.value

    assert error_with((Flag("written", 2, "core"),)).cores == (2,)  # core 1 may still wait for core 2
    assert error_with(()).cores == (1, 2)
    assert error_with((Flag("written", 0, "core"),)).cores == (1, 2)


def explored_part(name: str) -> str:
    page = PAGE.read_text()
    begin, end = f"<!-- explored: {name} -->\n", f"<!-- end of {name} -->\n"
    return page[page.index(begin) + len(begin) : page.index(end)]


def test_the_page_holds_what_is_explored(rows: dict[Line, Row]) -> None:
    assert explored_part("lines") == markdown(rows.values())


@pytest.mark.soak
def test_larger_configurations_hold_what_the_page_says() -> None:
    larger = [explore_line(line) for line in SLOW_LINES]
    assert all(row.exploration.complete and row.held == row.line.asked for row in larger)
    assert explored_part("slow lines") == markdown(larger)
