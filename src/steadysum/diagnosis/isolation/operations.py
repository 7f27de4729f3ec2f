"""Conditions that act at every operation of torch's: a wait for its end, a delay, a fill of memory that it left empty.

They act in the thread that calls the operator; torch's dispatch modes don't reach into the threads that it starts.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from steadysum.diagnosis.isolation.arranged import Acted, Operator, Surrounding
from steadysum.diagnosis.isolation.inputs import Call
from steadysum.guard.tensors import tensors_of

__all__ = ["delays", "filled_empties", "sizes_of", "synchronised"]

_EMPTY: Final = ("aten::empty", "aten::new_empty")  # and their kin: empty_like, empty_strided, new_empty_strided
_WAIT_S: Final = 0.1  # for a thread or a result: one that needs its starter to go on never ends before
_MOST_SIZES: Final = 32  # different ones


def sizes_of(run: Callable[[], Any]) -> list[int]:
    """The sizes in bytes of the tensors that the operations of one run return, largest first; its outputs' too."""
    mode = _Every(lambda _, out: sizes.update(_bytes(one) for one in tensors_of(out)))
    sizes: set[int] = set()
    with mode:
        value = run()
    sizes.update(_bytes(one) for one in tensors_of(value))
    return sorted(sizes, reverse=True)[:_MOST_SIZES]


def filled_empties(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Surrounding:  # noqa: ARG001
    """What torch.empty and its kin give is filled with one byte."""
    byte = int(values.get("byte", 0x7B))

    def fill(name: str, out: Any) -> None:
        if name.startswith(_EMPTY):
            for one in tensors_of(out):
                torch.empty(0, dtype=torch.uint8, device=one.device).set_(one.untyped_storage()).fill_(byte)
                acted.add()

    return Surrounding(_Every(fill))


def synchronised(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Surrounding:  # noqa: ARG001
    """After every operation, thread start, submitted task and collective, its end is waited for, up to 0.1 s.

    Counted are the waits. It takes time: a fault that it hides may be one of timing, and nothing is proven.
    """

    def wait(name: str, out: Any) -> None:  # noqa: ARG001
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        acted.add()

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        submit, start = concurrent.futures.ThreadPoolExecutor.submit, threading.Thread.start

        def submitted(self: Any, *args: Any, **kwargs: Any) -> Any:
            future = submit(self, *args, **kwargs)
            concurrent.futures.wait([future], _WAIT_S)
            acted.add()
            return future

        def started(self: threading.Thread) -> None:
            start(self)
            if not _is_of_a_pool(self):
                self.join(_WAIT_S)
                acted.add()

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(concurrent.futures.ThreadPoolExecutor, "submit", submitted))
            stack.enter_context(mock.patch.object(threading.Thread, "start", started))
            for name, collective in _collectives():
                waited = _waiting(collective, acted)
                stack.enter_context(mock.patch.object(torch.distributed, name, waited))
            stack.enter_context(_Every(wait))
            yield

    return Surrounding(around())


def delays(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Surrounding:  # noqa: ARG001
    """Some operations, modules and started threads begin late, and Python's threads take turns 500 times as often.

    values: rate (share that is late), seconds (longest delay; each is uniform below it), seed.
    """
    rate, longest = float(values.get("rate", 0.1)), float(values.get("seconds", 0.002))
    draw = random.Random(int(values.get("seed", 0)))

    def late() -> None:
        if draw.random() < rate:
            time.sleep(draw.random() * longest)
            acted.add()

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        run = threading.Thread.run

        def delayed(self: threading.Thread) -> None:
            late()
            run(self)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(interval / 500)
        hook = register_module_forward_pre_hook(lambda *_: late())
        try:
            with mock.patch.object(threading.Thread, "run", delayed), _Every(lambda *_: late()):
                yield
        finally:
            hook.remove()
            sys.setswitchinterval(interval)

    return Surrounding(around())


class _Every(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the name and the result of every operation."""

    def __init__(self, told: Callable[[str, Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._told = told

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._told(str(func._schema.name), out)
        return out


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_of_a_pool(thread: threading.Thread) -> bool:
    """A pool's thread waits for tasks: its end isn't the end of one."""
    return "ThreadPoolExecutor" in thread.name or thread.daemon


def _collectives() -> list[tuple[str, Any]]:
    """The functions of torch.distributed that may return before their result is there."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    names = [
        *("all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "broadcast"),
        *("reduce", "reduce_scatter", "reduce_scatter_tensor", "gather", "scatter", "isend", "irecv"),
    ]
    found = [(name, getattr(torch.distributed, name, None)) for name in names]
    return [(name, function) for name, function in found if function is not None]


def _waiting(collective: Callable[..., Any], acted: Acted) -> Callable[..., Any]:
    def waited(*args: Any, **kwargs: Any) -> Any:
        work = collective(*args, **kwargs)
        if work is not None and hasattr(work, "wait"):
            work.wait()
            acted.add()
        return work

    return waited
