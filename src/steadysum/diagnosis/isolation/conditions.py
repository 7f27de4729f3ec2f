"""The conditions that runs can be made under, as a table, and how several are put together.

Each has a counter that proves that it acted; runs under one that never acted are void. A new condition is a function in
one of the files named here, and a row of the table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from steadysum.diagnosis.isolation import input_changes, loads, operations, surroundings, ways
from steadysum.diagnosis.isolation.arranged import Acted, Condition, Operator, Surrounding, VoidError
from steadysum.diagnosis.isolation.inputs import Call

__all__ = ["INPUT_CHANGES", "SURROUNDINGS", "WAYS", "Arranged", "Row", "arrange", "names"]


class Row(NamedTuple):
    """One condition of the table."""

    make: Callable[..., Any]
    counts: str  # what its counter counts


_InputChange = Callable[[Call, Mapping[str, Any], Acted], Call]

INPUT_CHANGES: Final[Mapping[str, Row]] = {
    "exact_inputs": Row(input_changes.exact, "tensors of small integers"),
    "float64": Row(input_changes.float64, "tensors in float64"),
    "misaligned": Row(input_changes.misaligned, "tensors at the asked address"),
    "strided": Row(input_changes.strided, "tensors that aren't contiguous"),
}
WAYS: Final[Mapping[str, Row]] = {
    "rows_alone": Row(ways.rows_alone, "rows computed alone"),
    "split": Row(ways.split, "pieces computed"),
    "shuffled": Row(ways.shuffled, "rows at another place"),
}
SURROUNDINGS: Final[Mapping[str, Row]] = {
    "prefilled_memory": Row(surroundings.prefilled_memory, "new blocks that held the byte"),
    "filled_empties": Row(operations.filled_empties, "empty tensors filled"),
    "synchronised": Row(operations.synchronised, "waits"),
    "delays": Row(operations.delays, "delays"),
    "cpu_load": Row(loads.cpu_load, "ticks of processor time"),
    "memory_load": Row(loads.memory_load, "ticks of processor time"),
    "two_callers": Row(surroundings.two_callers, "calls by the second caller"),
    "threads": Row(surroundings.threads, "runs with that many threads"),
    "dirty_workspace": Row(surroundings.dirty_workspace, "calls with other values"),
    "same_random_state": Row(surroundings.same_random_state, "states restored"),
}


def names() -> tuple[str, ...]:
    """All conditions there are.

    >>> "rows_alone" in names()
    True
    """
    return (*INPUT_CHANGES, *WAYS, *SURROUNDINGS)


class Arranged(NamedTuple):
    """Runs, ready to be made."""

    call: Call  # with the arguments as they were changed
    run: Callable[[], Any]
    befores: tuple[Callable[[], None], ...]  # called before each run, in order


def arrange(
    conditions: Sequence[Condition],
    operator: Operator,
    call: Call,
    stack: contextlib.ExitStack,  # holds what is around the runs
    acted: Mapping[str, Acted],  # one for each condition, by name
) -> Arranged:
    """Puts conditions together: first the inputs are changed, then the way is chosen, then the rest is put around it.

    Raises:
        VoidError: a condition isn't known, is there twice, can't be set up, or there are two ways.
    """
    chosen = [one.name for one in conditions]
    unknown = [name for name in chosen if name not in names()]
    if unknown:
        raise VoidError(f"no condition is called {', '.join(unknown)}; there are {', '.join(names())}")
    if len(set(chosen)) < len(chosen) or len([name for name in chosen if name in WAYS]) > 1:
        raise VoidError(f"conditions {chosen}: each once, and one of {', '.join(WAYS)} at most")
    for one in conditions:
        if one.name in INPUT_CHANGES:
            call = INPUT_CHANGES[one.name].make(call, one.values, acted[one.name])
    run: Callable[[], Any] = lambda: operator(*call.args, **call.kwargs)  # noqa: E731 - or one of the ways
    for one in conditions:
        if one.name in WAYS:
            run = WAYS[one.name].make(operator, call, one.values, acted[one.name])
    befores = []
    for one in conditions:
        if one.name in SURROUNDINGS:
            made: Surrounding = SURROUNDINGS[one.name].make(operator, call, one.values, acted[one.name])
            stack.enter_context(made.around)
            if made.before is not None:
                befores.append(made.before)
    return Arranged(call, run, tuple(befores))
