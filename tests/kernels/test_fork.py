"""A child of fork computes with threads of its own, and gets its parent's bits. It must not hang, whatever ran before.

OpenMP threads, torch's and ours, don't survive a fork: a child that waits for them waits forever. Each scenario runs in
a fresh interpreter, since a process remembers what ran in it, under a time limit.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("needs_native")

CHILD_SECONDS = 30  # a child's work takes milliseconds

# Above 2^20 multiply-adds, below which the kernel uses one thread. The child counts the threads that its first call
# starts: a witness that it computes with several.
PROGRAM = f"""
import multiprocessing, os, sys, threading
sys.path[:0] = {sys.path!r}
import torch
from steadysum import linear_max_sum

before = sys.argv[1:]
torch.set_num_threads(3)
generator = torch.Generator().manual_seed(0)
x, head = torch.randn(200, 257, generator=generator), torch.randn(1300, 257, generator=generator)

def bits():
    found = linear_max_sum(x, head, kernel="native")
    return [values.view(torch.int32).tolist() for values in found]

def threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else None

def answer(pipe):
    earlier = threads()  # torch may have some of its own, for other work
    first = bits()
    started = None if earlier is None else threads() - earlier
    at_a_time = []
    callers = [threading.Thread(target=lambda: at_a_time.append(bits())) for _ in range(2)]
    for caller in callers: caller.start()
    for caller in callers: caller.join()
    pipe.send((first, started, at_a_time))

if "torch" in before:
    (x @ head.T).exp().sum()
if "native" in before:
    bits()
fork = multiprocessing.get_context("fork")
receiving, sending = fork.Pipe(duplex=False)
child = fork.Process(target=answer, args=(sending,))
child.start()
if not receiving.poll({CHILD_SECONDS}):
    child.kill()
    sys.exit(f"the child said nothing in {CHILD_SECONDS} seconds")
first, started, at_a_time = receiving.recv()
child.join({CHILD_SECONDS})
expected = bits()
assert child.exitcode == 0, child.exitcode
assert first == expected, "the child's bits differ"
assert at_a_time == [expected] * 2, "the bits of two callers in the child differ"
assert started in (None, 2), f"the child started {{started}} threads beside its own"
print("equal")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
@pytest.mark.parametrize("before", ["nothing", "torch", "native", "torch native"])
def test_a_child_of_fork_computes_with_threads_of_its_own_and_gets_the_same_bits(before: str) -> None:
    """`before` is what the parent has run on several threads."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *before.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * CHILD_SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr
