"""ExhaustiveRunner explores every run, tells the shortest counterexample, and never calls a part of them a proof."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable

import pytest

from steadysum.errors import OptionError, ScheduleError, SyncTimeout
from steadysum.sync.actions import Compute, Fence, Program
from steadysum.sync.exchange_model import Exchange, returned
from steadysum.sync.exhaustive import ExhaustiveRunner, Exploration, Step, Violation
from steadysum.sync.exploration_faults import Fault
from steadysum.sync.interference import Interference
from steadysum.sync.machine import Machine
from steadysum.sync.policies import ENHANCED, LEGACY
from steadysum.sync.properties import ExchangeWatch
from steadysum.sync.schedule import parse_schedule
from steadysum.sync.virtual import VirtualRunner

from .litmus import PLACE, X, Y, await_flag, launch, read, signal, write


def explore(exchange: Exchange, faults: tuple[Fault, ...] = (), **options) -> Exploration:
    armed = exchange.faults(*faults) if faults else None
    return ExhaustiveRunner(**options).explore(exchange.launch(armed), ExchangeWatch(exchange))


SMALL = {
    "enhanced": (Exchange(2, 1, ENHANCED), ()),
    "enhanced, a dead core": (Exchange(2, 1, ENHANCED), (Fault("dead"),)),
    "no heartbeat, stale reads": (Exchange(2, 1, ENHANCED._replace(heartbeat=False)), (Fault("stale", 2),)),
    "enhanced, dropped writes": (Exchange(2, 1, ENHANCED), (Fault("dropped", 2),)),
    "enhanced, a wait that gives up": (Exchange(2, 1, ENHANCED._replace(heartbeat=False)), (Fault("timeout"),)),
    "no fence, no heartbeat": (Exchange(2, 1, ENHANCED._replace(fence=False, heartbeat=False, exit_barrier=False)), ()),
    "no heartbeat, no exit barrier": (Exchange(2, 2, ENHANCED._replace(heartbeat=False, exit_barrier=False)), ()),
    "no heartbeat, a dead core": (Exchange(2, 1, ENHANCED._replace(heartbeat=False)), (Fault("dead"),)),
    "unbounded, a dead core": (Exchange(2, 1, ENHANCED._replace(bounded=False)), (Fault("dead"),)),
    "legacy": (Exchange(2, 1, LEGACY), ()),
}


@pytest.mark.parametrize("name", SMALL)
def test_orders_that_are_taken_as_one_and_histories_that_are_merged_hide_no_outcome(name: str) -> None:
    exchange, faults = SMALL[name]
    whole = explore(exchange, faults, reduced=False, merges=False)
    assert whole.complete
    for reduced, merges in ((True, True), (True, False), (False, True)):
        found = explore(exchange, faults, reduced=reduced, merges=merges)
        assert found.complete
        assert found.states <= whole.states
        assert found.outcomes == whole.outcomes
        assert set(found.counterexamples) == set(whole.counterexamples)
        assert bool(found.deadlocks) == bool(whole.deadlocks)
        assert found.most_actions == whole.most_actions


def test_no_shorter_sequence_of_choices_breaks_the_property() -> None:
    exchange = Exchange(2, 1, LEGACY)
    example = explore(exchange, reduced=False, stops_at=("S",)).counterexamples["S"]
    shorter: list[tuple] = [()]
    tried = 0
    while shorter:  # every sequence of fewer choices, run from its start on a machine that nothing was loaded into
        sequence = shorter.pop()
        began = exchange.launch()
        machine = Machine(began.memory, began.programs(), retries=began.retries)
        for choice in sequence:
            machine.take(choice)
        assert all(result == exchange.wanted(epoch) for _, epoch, result in returned(machine.log))
        tried += 1
        if len(sequence) + 1 < example.choices:
            shorter += [(*sequence, choice) for choice in machine.choices()]
    assert tried > 100


@pytest.mark.parametrize("name", [name for name, (_, faults) in SMALL.items() if faults])
def test_a_counterexample_with_faults_is_text_that_replays(name: str) -> None:
    exchange, faults = SMALL[name]
    found = explore(exchange, faults)
    for example in found.counterexamples.values():
        schedule = parse_schedule(str(example.schedule))
        run = VirtualRunner().replay(exchange.launch(exchange.faults(*faults)), schedule)
        assert run.schedule == schedule
        assert "f0." in str(schedule)
        assert run.dead  # of these lines, those with a dead core break something


def test_a_schedule_of_other_programs_is_refused() -> None:
    exchange, _ = SMALL["no fence, no heartbeat"]
    example = explore(exchange).counterexamples["A"]
    with pytest.raises(ScheduleError, match="choices that the programs have"):
        VirtualRunner().replay(Exchange(2, 1, LEGACY).launch(), example.schedule)


def test_an_exploration_that_reaches_its_limit_is_no_proof() -> None:
    found = explore(Exchange(2, 2, ENHANCED), limit=50)
    assert not found.complete
    assert 50 < found.states < 60
    assert str(found) == f"stopped after {found.states} states, nothing broken in them: not a proof"


def test_an_exploration_of_everything_says_so() -> None:
    found = explore(Exchange(2, 1, ENHANCED))
    assert found.complete
    assert str(found) == f"{found.states} states, all there are: nothing broken"


def test_ctrl_c_keeps_what_was_found_and_does_not_call_it_a_proof() -> None:
    class Impatient(ExchangeWatch):
        steps = 0

        def after(self, memory, step: Step) -> tuple[Hashable, Iterable[Violation]]:
            self.steps += 1
            if self.steps == 2000:
                raise KeyboardInterrupt
            return super().after(memory, step)

    exchange = Exchange(2, 2, LEGACY)
    found = ExhaustiveRunner().explore(exchange.launch(), Impatient(exchange))
    assert not found.complete
    assert 100 < found.states <= 2001
    assert not found.holds("S")
    assert "not a proof" in str(found)


def test_an_interference_that_draws_is_refused() -> None:
    with pytest.raises(OptionError, match="ChosenFaults"):
        ExhaustiveRunner().explore(Exchange(2, 1, ENHANCED).launch(Interference()))


def test_a_unit_that_waits_for_ever_is_counted() -> None:
    def waits() -> Program:
        yield await_flag()

    found = ExhaustiveRunner().explore(launch(waits))
    assert found.deadlocks == 1
    assert {outcome.units for outcome in found.outcomes} == {("waits for ever",)}


def test_a_program_without_an_end_has_no_bound() -> None:
    def spins() -> Program:
        while not (yield read(X))[0][0]:
            pass

    def sets() -> Program:
        yield write((X, 1))

    found = ExhaustiveRunner().explore(launch(spins, sets))
    assert found.complete
    assert found.most_actions is None


def test_the_most_actions_of_a_call_are_counted_over_all_runs() -> None:
    def waits() -> Program:  # the wait, and if it timed out two more actions
        if (yield await_flag(timeout=1.0)):
            yield Compute(PLACE, int, 0.0, "a")
            yield Compute(PLACE, int, 0.0, "b")

    def signals() -> Program:
        yield signal()

    assert ExhaustiveRunner().explore(launch(waits, signals)).most_actions == 3


def test_an_error_is_an_outcome_and_ends_all_units_where_the_launch_says_so() -> None:
    def raises() -> Program:
        yield Fence(PLACE)
        raise SyncTimeout("test", "nothing", "something", "Do nothing.", cores=(1,))

    def goes_on() -> Program:
        yield write((X, 1))
        yield write((Y, 1))
        return "done"

    each = ExhaustiveRunner().explore(launch(raises, goes_on))
    assert {outcome.units for outcome in each.outcomes} == {("raised SyncTimeout naming (1,)", "returned done")}
    aborted = ExhaustiveRunner(reduced=False).explore(launch(raises, goes_on)._replace(stops_at_error=True))
    assert ("raised SyncTimeout naming (1,)", "stopped") in {outcome.units for outcome in aborted.outcomes}


def test_partials_fold_to_a_distinct_value_for_every_subset() -> None:
    exchange = Exchange(3, 2, ENHANCED)
    partials = [int(exchange.partial(core, epoch)[0][0]) for core in range(3) for epoch in (1, 2)]
    subsets = [subset for size in range(7) for subset in itertools.combinations(partials, size)]
    assert len({sum(subset) for subset in subsets}) == len(subsets) == 64
    assert [exchange.wanted(epoch) for epoch in (1, 2)] == [0b000111, 0b111000]


def test_more_partials_than_an_integer_has_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 62, one power of two for each"):
        Exchange(8, 8, ENHANCED).launch()
