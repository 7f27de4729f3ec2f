"""Programs that can be taken up again at any point, though a generator can't be copied.

What a program does next is a function of what it was sent so far: its history. A tree keeps the histories met, each
with the action that follows it; at a result not met before, the program is run again from its start, alone, which
costs some tens of sends. Histories that leave the program in the same state are one node: see _state_of.

Not here: the memory and the flags that the results come from (machine.py), and what is explored (exhaustive.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

import numpy as np

from steadysum.errors import SteadySumError
from steadysum.sync.actions import Action, Program

__all__ = ["Cursor", "NotAValueError", "Tree", "frozen"]

_DEEPEST: Final = 12  # of nested containers; deeper ones are taken for something that refers to itself


class NotAValueError(TypeError):
    """An object that can't be compared by its content."""


class Tree:
    """All histories met of one program.

    Args:
        start: makes the program anew; it must do the same each time, and must not change what it is sent.
        merges: whether histories that leave the program in the same state are one; False: only equal ones are.
    """

    def __init__(self, start: Callable[[], Program], merges: bool = True) -> None:
        self._start = start
        self._merges = merges
        self.actions: list[Action | None] = []  # by node; None: the program has ended
        self.ends: dict[int, tuple[Any, SteadySumError | None]] = {}  # of ended nodes: what was returned, or raised
        self.following: list[dict[Hashable, int]] = []  # by node: result -> node
        self._histories: list[tuple[Any, ...]] = []  # by node: one that leads to it
        self._known: dict[Hashable, int] = {}
        self.root = self._run(())

    def follow(self, node: int, result: Any) -> int:
        """The node after a result."""
        try:
            key: Hashable = frozen(result)
        except NotAValueError:
            key = _Unlike()
        found = self.following[node].get(key)
        if found is None:
            found = self.following[node][key] = self._run((*self._histories[node], result))
        return found

    def _run(self, history: tuple[Any, ...]) -> int:
        program = self._start()
        action: Action | None
        end: tuple[Any, SteadySumError | None] | None = None
        try:
            action = program.send(None)
            for result in history:
                action = program.send(result)
        except StopIteration as stop:
            action, end = None, (stop.value, None)
        except SteadySumError as error:
            action, end = None, (None, error)
        key = self._key(program, action, end, history)
        program.close()
        node = self._known.setdefault(key, len(self.actions))
        if node == len(self.actions):
            self.actions.append(action)
            self.following.append({})
            self._histories.append(history)
            if end is not None:
                self.ends[node] = end
        return node

    def _key(self, program: Program, action: Action | None, end: Any, history: tuple[Any, ...]) -> Hashable:
        try:
            if not self._merges:
                return frozen(history)
            return frozen(end) if end is not None else _state_of(program, action)
        except NotAValueError:
            return ("history", len(self.actions))  # its own node: nothing is merged


class Cursor:
    """A program at some node of its tree: it takes sends as a generator does, and can be put anywhere."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.node = tree.root
        self._started = False

    def send(self, result: Any) -> Action:
        """The next action.

        Raises:
            StopIteration, SteadySumError: as the program does.
        """
        if self._started:
            self.node = self.tree.follow(self.node, result)
        self._started = True
        action = self.tree.actions[self.node]
        if action is not None:
            return action
        value, error = self.tree.ends[self.node]
        if error is not None:
            raise error
        raise StopIteration(value)


class _Unlike:
    """A key that equals no other."""


def _state_of(program: Program, action: Action | None) -> Hashable:
    """What a suspended program's future depends on: where each of its nested generators stands, and its variables.

    Python hides one thing, the values that a suspended expression or loop holds. Expressions hold what was made from
    variables; a `for` loop holds how far it is, which its variable tells unless the loop gives one value twice. The
    programs of this package keep to that, and the tests compare explorations that merge by state and by history.
    """
    frames: list[Hashable] = [frozen(action)]
    inner: Any = program
    while inner is not None:
        if not isinstance(inner, GeneratorType) or inner.gi_frame is None:
            raise NotAValueError(type(inner).__name__)
        frame = inner.gi_frame
        frames.append((frame.f_code, frame.f_lasti, frozen(dict(frame.f_locals))))
        inner = inner.gi_yieldfrom
    return tuple(frames)


def frozen(value: Any, depth: int = 0) -> Hashable:
    """A hashable value that equals another's if both have the same content.

    Raises:
        NotAValueError: it isn't known how to compare this object's content.

    >>> frozen([1, (2.0, "a")]) == frozen([1, (2.0, "a")])
    True
    >>> frozen([1]) == frozen((1,))
    False
    """
    kind = type(value)
    if kind is float:
        return (kind, value.hex())
    if value is None or kind in _ATOMS:
        return (kind, value)
    if depth > _DEEPEST:
        raise NotAValueError("nested too deep")
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            raise NotAValueError(str(value.dtype))
        return (kind, value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, tuple | list):
        return (kind, *(frozen(item, depth + 1) for item in value))
    if isinstance(value, dict):
        return (kind, *((frozen(key, depth + 1), frozen(item, depth + 1)) for key, item in value.items()))
    if isinstance(value, set | frozenset):
        return (kind, frozenset(frozen(item, depth + 1) for item in value))
    if isinstance(value, SteadySumError):
        return (kind, frozen(value.args, depth + 1))
    if isinstance(value, FunctionType):  # its globals are taken for constants
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return (kind, value.__code__, frozen(value.__defaults__, depth + 1), frozen(cells, depth + 1))
    if isinstance(value, MethodType):
        return (kind, frozen(value.__func__, depth + 1), frozen(value.__self__, depth + 1))
    if isinstance(value, GeneratorType) and value.gi_frame is None:
        return (kind, "ended")
    raise NotAValueError(kind.__name__)


_ATOMS: Final = frozenset({bool, int, str, bytes, range, CodeType, type})
