"""Armed: the armed faults at work, at every hook that a machine and its programs ask.

Not here: which kinds there are (fault_kinds.py), how one is armed (arm.py), which of them acts when (decisions.py), how
values are spoilt (spoiling.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steadysum.cores.arm import Arm
from steadysum.cores.decisions import Decisions
from steadysum.cores.earlier import Journal
from steadysum.cores.fault_kinds import KINDS, OUTPUTS, Kind, Knob
from steadysum.cores.spoiling import (
    arrays_of,
    cut_of,
    differ,
    fill,
    fits_word,
    flipped,
    hidden_part,
    like,
    scaled,
    size_of,
    spoil_some,
    torn_words,
    when_spoilt,
    within,
    without_elements,
)
from steadysum.sync.actions import Await, Barrier, Compute, Fence, Flag, Place, Read, Signal, Word, Write
from steadysum.sync.memory import Memory, Span
from steadysum.trace.events import Unit

__all__ = ["KINDS", "Arm", "Armed", "Kind", "Knob"]

_SPOILS: Final = {"flip": flipped, "scale": scaled}
_WRITES: Final = frozenset({"flip", "scale", "unwritten", "torn", "dropped", "reordered"})
_WORKSPACE: Final = ("max", "sum", "target_logit", "stamp", "predicted")
_OVERRUNS: Final = frozenset({"buffer free", "exit"})  # where an overrun acts without a site


class Armed(Decisions):
    """Faults that act where they are armed, and count it.

    Args:
        arms: the faults; numbered in schedules by their position here.
        seed: of all that is drawn.
    """

    def __init__(self, arms: Sequence[Arm], seed: int = 0) -> None:
        super().__init__(arms, seed)
        ages = [arm.knob("age") for arm in self.arms if arm.kind == "stale"]
        self._journal = Journal(max(ages)) if ages else None
        self._layout: dict[str, Any] = {}
        self._dirtied: set[int] = set()  # arms of kind dirty that act in this call
        self._dead: dict[tuple[int, int], set[Unit]] = {}  # by (arm, core): its units that it has stopped
        self._slow: dict[tuple[int, int], bool] = {}  # by (arm, core): whether it is
        self._slow_epoch: dict[tuple[int, int], int] = {}  # by (arm, core): the last epoch in which that was asked
        self._begin_run(None)

    # ---- calls, runs and steps --------------------------------------------------------------------------------------

    def begin_call(self, call: int, epoch: int) -> None:
        """A launch of the call begins; draws are its own, so that it doesn't matter which calls came before."""
        super().begin_call(call, epoch)
        self._dirtied.clear()
        if self._journal is not None:
            self._journal.begin(epoch)

    def begin_run(self, memory: Memory) -> None:
        """Programs begin to run over a memory."""
        self._begin_run(memory)
        if self._journal is not None and dict(memory.regions) != self._layout:
            self._journal.forget()
            self._layout = dict(memory.regions)

    def _begin_run(self, memory: Memory | None) -> None:
        self._memory = memory
        self._raised: dict[str, dict[Flag, int]] = {}  # flags by name, and their values
        self._held: dict[Unit, dict[Span, Arm]] = {}  # words that fences don't wait for
        self._lead: dict[tuple[int, Unit], int] = {}  # waits that end too early after the one that was drawn
        self._actions: dict[Unit, tuple[int, int, int]] = {}  # (epoch, index of the phase, actions before this one)
        self._places: dict[Unit, Place] = {}
        self._sleeps: dict[Unit, float] = {}  # of a dead unit that comes back

    # ---- hooks of the machine: what keeps a unit from its action ----------------------------------------------------

    def dies(self, unit: Unit, place: Place) -> bool:
        """Whether the unit stops for ever before this action."""
        if self._journal is not None:
            self._journal.begin(place.epoch)
        if "slow" in self._kinds:
            self._places[unit] = place
            self._ask_slow(unit, place)
        return "dead" in self._kinds and self._stops(unit, place)

    def _stops(self, unit: Unit, place: Place) -> bool:
        epoch, index, count = self._actions.get(unit, (0, 0, 0))
        count = count + 1 if (epoch, index) == place[:2] else 0
        self._actions[unit] = (place.epoch, place.index, count)
        for number, arm in enumerate(self.arms):
            if arm.kind != "dead" or not self._covers(arm, place.epoch) or not arm.fits(unit):
                continue
            stopped = self._dead.get((number, unit.core))
            back: float = arm.knob("comes_back")
            follows = stopped is not None and not (back and unit in stopped)
            if not follows and not (arm.fits_phase(place) and count == arm.knob("after")):
                continue
            if not self._acts(number, place.epoch, follows):
                continue
            if stopped is None or not follows:
                stopped = self._dead[number, unit.core] = set()
            stopped.add(unit)
            if not back:
                return True
            self._sleeps[unit] = back
        return False

    def delay(self, unit: Unit, action: Any) -> float:
        """Microseconds that the unit sleeps before this action."""
        sleep = self._sleeps.pop(unit, 0.0) if self._sleeps else 0.0
        if "delay" not in self._kinds or not isinstance(action, Await | Barrier | Signal):
            return sleep
        name = _name(action)
        for number, arm in self._arms("delay", unit, action.place):
            if (arm.site is None and isinstance(action, Signal)) or arm.site not in (None, name):
                continue
            draw = self._details(number, action.place.epoch)
            if self._acts(number, action.place.epoch):
                sleep += _length(arm, draw)
        return sleep

    def _ask_slow(self, unit: Unit, place: Place) -> None:
        """Settles whether the unit's core is slow: asked once for each core, told once for each epoch."""
        for number, arm in enumerate(self.arms):
            key = (number, unit.core)
            if (
                arm.kind != "slow"
                or not self._covers(arm, place.epoch)
                or not arm.fits(unit)
                or self._slow_epoch.get(key) == place.epoch
                or self._slow.get(key) is False
            ):
                continue
            self._slow_epoch[key] = place.epoch
            self._slow[key] = self._acts(number, place.epoch, follows=key in self._slow)

    def slowness(self, unit: Unit) -> float:
        """Factor of all of the unit's times."""
        factor = 1.0
        if "slow" in self._kinds and unit in self._places:
            for number, arm in self._arms("slow", unit, self._places[unit]):
                if self._slow.get((number, unit.core)):
                    factor *= arm.knob("factor")
        return factor

    # ---- hooks of the machine: work and memory ----------------------------------------------------------------------

    def computed(self, unit: Unit, action: Compute, result: Any) -> Any:
        """What the unit holds after its own work."""
        for kind, spoil in _SPOILS.items():
            for number, arm in self._arms(kind, unit, action.place):
                if when_spoilt(arm) != "work" or arm.site not in (None, action.label):
                    continue
                arrays = arrays_of(result)
                if not any(array.size for array in arrays):
                    continue
                draw = self._details(number, action.place.epoch)
                decision = self._decide(number)
                if decision is None:
                    continue
                spoilt = spoil_some(spoil, arm, arrays, draw)
                if differ(arrays, spoilt):
                    self._act(decision, action.place.epoch)
                    result = like(result, spoilt)
        return result

    def written(self, unit: Unit, action: Write) -> Sequence[Word]:
        """The words that enter the store buffer."""
        words: Sequence[Word] = action.words
        if not self._kinds & _WRITES:
            return words
        epoch = action.place.epoch
        for kind in ("flip", "scale", "unwritten", "torn", "dropped"):
            for number, arm in self._arms(kind, unit, action.place):
                if kind in _SPOILS and when_spoilt(arm) != "write":
                    continue
                chosen = [word for word in words if len(word.values) and fits_word(arm, word)]
                if not chosen or (kind == "torn" and not 0 < cut_of(arm, chosen) < size_of(chosen)):
                    continue
                draw = self._details(number, epoch)
                decision = self._decide(number)
                if decision is None:
                    continue
                spoilt = self._spoilt(arm, chosen, draw)
                if kind in _SPOILS and not differ([w.values for w in chosen], [w.values for w in spoilt]):
                    continue
                self._act(decision, epoch)
                words = [*(word for word in words if not any(word is one for one in chosen)), *spoilt]
        if "reordered" in self._kinds:
            self._hold(unit, action.place, words)
        return words

    def _spoilt(self, arm: Arm, words: list[Word], draw: random.Random) -> list[Word]:
        """What becomes of the words that an arm acts on."""
        if arm.kind in _SPOILS:
            number = int(draw.random() * len(words))
            span, values = words[number]
            spoilt = _SPOILS[arm.kind](arm, values, draw, within(arm, span.start, span.stop))
            return [*words[:number], Word(span, spoilt), *words[number + 1 :]]
        if arm.kind == "unwritten":
            length = max(len(word.values) for word in words)
            hidden = hidden_part(arm.knob("part"), arm.knob("count"), length, draw)
            return [piece for word in words for piece in without_elements(word, hidden)]
        if arm.kind == "torn":
            assert self._memory is not None
            return torn_words(words, cut_of(arm, words), arm.knob("new"), self._memory)
        return []

    def _hold(self, unit: Unit, place: Place, words: Sequence[Word]) -> None:
        """Words that stay in the store buffer: fences don't wait for them."""
        held = self._held.setdefault(unit, {})
        for word in words:
            held.pop(word.span, None)
        for number, arm in self._arms("reordered", unit, place):
            chosen = [word.span for word in words if arm.fits_span(word.span)]
            if chosen and self._acts(number, place.epoch):
                held.update(dict.fromkeys(chosen, arm))

    def drain_delay(self, unit: Unit, span: Span) -> float:
        """Microseconds that a word stays longer in the store buffer."""
        return max((arm.knob("microseconds") for arm in self._held_in(unit, [span])), default=0.0)

    def fences(self, unit: Unit, action: Fence, spans: Sequence[Span]) -> bool:  # noqa: ARG002 - the hook's signature
        """Whether the fence works: it doesn't while a word stays in the store buffer by a fault."""
        return next(self._held_in(unit, spans), None) is None

    def forwards(self, unit: Unit, action: Read) -> bool:
        """Whether the unit's read sees its own words that haven't drained."""
        return not any(arm.knob("own") for arm in self._held_in(unit, action.spans))

    def _held_in(self, unit: Unit, spans: Sequence[Span]) -> Iterator[Arm]:
        for (region, start, stop), arm in self._held.get(unit, {}).items():
            if any(region == span.region and start < span.stop and span.start < stop for span in spans):
                yield arm

    def additions(self, unit: Unit, place: Place, word: Word) -> int:
        """How often an atomic add takes effect."""
        times = 1
        for kind, by in (("duplicated", 1), ("dropped", -1)):
            for number, arm in self._arms(kind, unit, place):
                if arm.fits_span(word.span) and self._acts(number, place.epoch):
                    times += by
        return max(times, 0)

    def stored(self, span: Span, before: NDArray[Any]) -> None:
        """Memory is about to change: what it held in this span."""
        if self._journal is not None:
            self._journal.stored(span, before)

    def read(self, unit: Unit, action: Read, values: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """What the unit gets."""
        for number, arm in self._arms("stale", unit, action.place):
            chosen = [position for position, span in enumerate(action.spans) if arm.fits_span(span)]
            decision = self._decide(number) if chosen else None
            if decision is None or self._journal is None or self._memory is None:
                continue
            found = list(values)
            for position in chosen:
                span = action.spans[position]
                now = self._memory.load(span)
                found[position] = self._journal.earlier(span, now, action.place.epoch, arm.knob("age"))
            if differ(values, found):
                self._act(decision, action.place.epoch)
                values = found
        return values

    # ---- hooks of the machine: flags --------------------------------------------------------------------------------

    def signalled(
        self,
        unit: Unit,
        action: Signal | Barrier,
        memory: Memory,  # noqa: ARG002 - the hook's signature
    ) -> Sequence[Flag]:
        """The flags that are wiped right after this signal."""
        if "reset" not in self._kinds:
            return ()
        own, value = action.flag if isinstance(action, Signal) else action.own, action.value
        raised = self._raised.setdefault(own.name, {})
        raised[own] = max(value, raised.get(own, 0))
        wiped: list[Flag] = []
        for number, arm in self._arms("reset", unit, action.place):
            if arm.site not in (None, own.name) or arm.knob("batch") not in (0, value):
                continue
            early = [flag for flag, reached in raised.items() if flag != own and reached >= value]
            chosen = [own] if arm.knob("whose") == "own" else early
            if chosen and self._acts(number, action.place.epoch):
                wiped += chosen
                for flag in chosen:
                    raised.pop(flag, None)
        return wiped

    def passes(self, unit: Unit, action: Await | Barrier) -> str | None:
        """How an await ends at once, before its flags are there: "ok", or None: it waits."""
        if "overrun" not in self._kinds:
            return None
        name = _name(action)
        for number, arm in self._arms("overrun", unit, action.place):
            if name not in (_OVERRUNS if arm.site is None else (arm.site,)):
                continue
            left = self._lead.get((number, unit), 0)
            if self._acts(number, action.place.epoch, follows=left > 0):
                self._lead[number, unit] = (left or arm.knob("lead")) - 1
                return "ok"
        return None

    # ---- what programs and their host ask ---------------------------------------------------------------------------

    def acts(self, kind: str, unit: Unit, place: Place, site: str) -> Arm | None:
        """The arm of a program's kind that acts here; None: none does."""
        for number, arm in self._arms(kind, unit, place):
            if kind == "dirty":  # settled at the call's begin
                if number in self._dirtied:
                    return arm
            elif arm.site in (None, site) and self._acts(number, place.epoch):
                return arm
        return None

    def spoil_workspace(self, memory: Memory, place: Place) -> None:
        """Before the first step: dirty content in the workspace. Whose P0 is left out then, acts("dirty", ...) says."""
        for number, arm in enumerate(self.arms):
            if arm.kind != "dirty" or not self._covers(arm, place.epoch) or not self._acts(number, place.epoch):
                continue
            self._dirtied.add(number)
            for name in (arm.region,) if arm.region else _WORKSPACE:
                array = memory.arrays.get(name)
                if array is not None and arm.knob("content") != "earlier":
                    fill(array[slice(*(arm.elements or (None, None)))], arm.knob("content"))

    def spoil_operands(self, operands: Mapping[str, NDArray[Any]], place: Place) -> None:
        """Before the first step: flips and scales in the device's copies of x and w, in place."""
        self._spoil_in_place("begin", operands, tuple(operands), place)

    def spoil_outputs(self, memory: Memory, place: Place) -> None:
        """After the last step: flips and scales in memory, in place; in outputs, where no site is given."""
        self._spoil_in_place("end", memory.arrays, OUTPUTS, place)

    def _spoil_in_place(
        self, when: str, arrays: Mapping[str, NDArray[Any]], without_site: Sequence[str], place: Place
    ) -> None:
        for number, arm in enumerate(self.arms):
            if arm.kind not in _SPOILS or when_spoilt(arm) != when or not self._covers(arm, place.epoch):
                continue
            names = [arm.region] if arm.region else without_site
            names = [name for name in names if name in arrays and arrays[name].size]
            if not names or arm.core is not None or arm.role is not None or not arm.fits_phase(place):
                continue
            draw = self._details(number, place.epoch)
            decision = self._decide(number)
            if decision is None:
                continue
            array = arrays[names[int(draw.random() * len(names))]]
            spoilt = _SPOILS[arm.kind](arm, array, draw, within(arm, 0, array.size))
            if differ([array], [spoilt]):
                self._act(decision, place.epoch)
                array[...] = spoilt


def _name(action: Await | Barrier | Signal) -> str:
    if isinstance(action, Barrier):
        return action.own.name
    if isinstance(action, Signal):
        return action.flag.name
    return action.flags[0].name if action.flags else ""


def _length(arm: Arm, draw: random.Random) -> float:
    """Microseconds of a delay."""
    length: float = arm.knob("microseconds")
    if arm.knob("distribution") == "lognormal":
        length *= float(np.exp(draw.gauss(0.0, arm.knob("sigma"))))
    elif arm.knob("distribution") == "exponential":
        length *= draw.expovariate(1.0)
    return length
