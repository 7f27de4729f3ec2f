"""The folder of bundles: each whole or not there, never more than so many, and no failure of it stops the work."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadysum.guard import bundle_content, bundle_files
from steadysum.guard.bundle import BundleStore, Evidence, read_bundle
from steadysum.guard.bundle_files import to_remove
from steadysum.notices import Notice, listen

PARTIAL = ".partial-*"


def evidence(number: int = 0, elements: int = 100) -> Evidence:
    return Evidence("op", None, (torch.full((elements,), number),), {}, {"deviating": number}, (), "transient", {})


def bundles(folder: Path) -> list[Path]:
    return sorted(folder.glob("bundle-*"))


def partials(folder: Path) -> list[Path]:
    return sorted(folder.glob(PARTIAL))


def numbers(folder: Path) -> list[int]:
    """Which failures the bundles are of."""
    return [read_bundle(path).outputs["deviating"] for path in bundles(folder)]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the disk: these tests cut no power."""
    monkeypatch.setattr(os, "fsync", id)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("a file system of 512 KiB is missing: no right to mount one")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


# Number and size


@given(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 50), st.integers(1, 8))
def test_the_limits_hold_and_the_first_stay(sizes: list[int], new: int, most: int) -> None:
    limit = 100
    kept: list[int] = []
    for size in sizes:  # a folder as it comes about
        going = to_remove(kept, size, most, limit)
        if going is not None:
            kept = [*(each for place, each in enumerate(kept) if place not in going), size]
    going = to_remove(kept, new, most, limit)
    if going is None:
        assert most == 1  # no size of at most half is ever refused, with room for a second one
        assert kept
        return
    left = [each for place, each in enumerate(kept) if place not in going]
    assert len(left) + 1 <= most
    assert sum(left) + new <= limit
    if kept:
        assert left[:1] == kept[:1]
    if len(kept) + 1 <= most and sum(kept) + new <= limit:
        assert left == kept


def test_a_thousand_failures_leave_the_first_ones_and_the_newest(tmp_path: Path, fast: None) -> None:
    store = BundleStore(tmp_path, most=6)
    seen: list[Notice] = []
    with listen(seen.append):
        for number in range(1000):
            store.write(evidence(number))
    assert numbers(tmp_path) == [0, 1, 2, 997, 998, 999]
    assert [notice.labels["outcome"] for notice in seen] == ["written"] * 1000
    assert partials(tmp_path) == []


def test_the_size_of_all_bundles_is_bounded(tmp_path: Path, fast: None) -> None:
    limit = 4 << 20
    store = BundleStore(tmp_path, most=100, most_bytes=limit)
    for number in range(40):
        assert store.write(evidence(number, elements=100_000)) is not None  # 800 KB
        used = sum(each.stat().st_size for path in bundles(tmp_path) for each in path.iterdir())
        assert used <= limit
    assert numbers(tmp_path) == [0, 1, 37, 38, 39]  # five of 0.84 MB fit, two of them into the first half


def test_one_bundle_alone_is_the_first(tmp_path: Path) -> None:
    store = BundleStore(tmp_path, most=1)
    seen: list[Notice] = []
    with listen(seen.append):
        assert store.write(evidence(0)) is not None
        assert store.write(evidence(1)) is None
    assert numbers(tmp_path) == [0]
    assert [notice.labels["outcome"] for notice in seen] == ["written", "dropped"]


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    theirs = [
        tmp_path / "bundle-of-letters",
        tmp_path / ".partial-mine",
        tmp_path / "elsewhere",
        tmp_path / "bundle-20200101T000000.000000000Z-1-1-op",
    ]
    for path in theirs[:3]:
        path.mkdir()
        (path / "file").touch()
    theirs[3].symlink_to(theirs[2])
    store = BundleStore(tmp_path, most=1)
    store.write(evidence())
    store.write(evidence())
    assert all(path.exists() for path in theirs)
    assert (theirs[2] / "file").exists()


def test_threads_share_a_folder(tmp_path: Path, fast: None) -> None:
    def write(first: int) -> None:
        store = BundleStore(tmp_path, most=4)
        for number in range(first, first + 10):
            assert store.write(evidence(number)) is not None

    threads = [threading.Thread(target=write, args=(100 * place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(numbers(tmp_path)) == 4
    assert partials(tmp_path) == []


# Processes. They are forked by one process of their own, which imports the package once: a program of a test runs in a
# child of it, and forks writers, which it kills.

FORKS = """
import json, os, random, signal, sys, threading, time, traceback, warnings
from pathlib import Path
import torch
from steadysum.guard import bundle_files
from steadysum.guard.bundle import BundleStore, Evidence, read_bundle

def evidence(number=0, elements=100):
    x = torch.full((elements,), number)
    return Evidence("op", None, (x,), {}, {"deviating": number}, (), "transient", {})

def fork(work, *arguments):
    child = os.fork()
    if child == 0:
        try:
            work(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child

def whole():
    paths = sorted(folder.glob("bundle-*"))
    for path in paths:
        found = read_bundle(path)
        assert (found.args[0] == found.outputs["deviating"]).all(), path
    return paths

def run(program, errors):
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    exec(program, globals())

for line in sys.stdin:
    program, where, errors = json.loads(line)
    folder = Path(where)
    print(os.waitpid(fork(run, program, errors), 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def run_forks(forks: subprocess.Popen[str], tmp_path: Path) -> Callable[[str], Path]:
    """Runs a program, which must not fail; the folder that it writes bundles to."""
    folder, errors = tmp_path / "bundles", tmp_path / "errors"
    folder.mkdir()

    def run(program: str) -> Path:
        assert forks.stdin is not None
        assert forks.stdout is not None
        forks.stdin.write(json.dumps([program, str(folder), str(errors)]) + "\n")
        forks.stdin.flush()
        assert forks.stdout.readline() == "0\n", errors.read_text()
        return folder

    return run


def test_a_writer_killed_at_any_step_leaves_no_half_bundle(run_forks: Callable[[str], Path]) -> None:
    # The n-th child kills itself at its n-th call of the system that opens, makes, renames, removes or syncs, until
    # one gets through: no step is left out. A full folder makes it remove an old bundle, too.
    program = """
store = BundleStore(folder, most=3)
for number in range(3):
    store.write(evidence(number))

def killed_at(step):
    calls = 0
    def count(event, _=None):
        nonlocal calls
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.listdir", "os.scandir",
                     "fcntl.lockf", "os.fsync"):
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
    sys.addaudithook(count)
    sync = os.fsync
    os.fsync = lambda handle: (count("os.fsync"), sync(handle))
    assert BundleStore(folder, most=3).write(evidence(step)) is not None

step, left = 0, 0
while True:
    _, status = os.waitpid(fork(killed_at, step), 0)
    paths = whole()
    assert len(paths) in (2, 3), paths  # 2: it was killed between the removal of one and the naming of the next
    left += bool(list(folder.glob(".partial-*")))
    if status == 0:
        break
    assert status == signal.SIGKILL, status
    step += 1
store.write(evidence(1000))  # the next writer clears away what they left
assert not list(folder.glob(".partial-*"))
assert len(whole()) == 3
assert step > 30 and left > 20, (step, left)
"""
    run_forks(program)


def test_writers_killed_at_any_time_leave_no_half_bundle(run_forks: Callable[[str], Path]) -> None:
    program = """
def forever():
    store = BundleStore(folder, most=4)
    for number in range(10**6):
        store.write(evidence(number, 50_000))

for number in range(20):
    children = [fork(forever) for _ in range(2)]
    time.sleep(random.Random(number).uniform(0.01, 0.12))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert len(whole()) <= 4
BundleStore(folder, most=4).write(evidence())
assert not list(folder.glob(".partial-*"))
assert len(whole()) == 4
"""
    run_forks(program)


def test_processes_share_a_folder_and_its_limits(run_forks: Callable[[str], Path]) -> None:
    program = """
def write(first):
    warnings.simplefilter("error")
    store = BundleStore(folder, most=6)
    for number in range(first, first + 30):
        assert store.write(evidence(number)) is not None

children = [fork(write, 100 * place) for place in range(4)]
while True:
    assert len(list(folder.glob("bundle-*"))) <= 6
    if os.waitpid(children[0], os.WNOHANG)[0]:
        break
assert all(os.waitpid(child, 0)[1] == 0 for child in children[1:])
assert len(whole()) == 6
assert not list(folder.glob(".partial-*"))
"""
    run_forks(program)


def test_a_child_forked_while_another_thread_writes_can_write(run_forks: Callable[[str], Path]) -> None:
    program = """
store = BundleStore(folder)
store.write(evidence(0))

def write():
    assert store.write(evidence(1)) is not None

inside, done = threading.Event(), threading.Event()
def hold():
    with bundle_files.exclusive(folder):
        inside.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = fork(write)
time.sleep(0.2)
done.set()
thread.join()
assert os.waitpid(child, 0)[1] == 0
assert len(whole()) == 2
"""
    run_forks(program)


def test_a_living_writers_partial_stays_and_a_reused_process_number_does_not_protect_one(tmp_path: Path) -> None:
    name = bundle_files.new_name("op")
    mine = bundle_files.make_partial(tmp_path, name)
    place, process, started = re.fullmatch(r"\.partial-(\w+)-(\d+)-(\d+)-.*", mine.name).groups()  # type: ignore[union-attr]
    (reused := tmp_path / f".partial-{place}-{process}-{int(started) - 1}-{name}").mkdir()
    (elsewhere := tmp_path / f".partial-{'0' * 12}-{process}-{started}-{name}").mkdir()
    (long_ago := tmp_path / f".partial-{'1' * 12}-{process}-{started}-{name}").mkdir()
    os.utime(long_ago, (0, 0))
    bundle_files.sweep(tmp_path)
    assert [path.exists() for path in (mine, reused, elsewhere, long_ago)] == [True, False, True, False]


def test_a_lock_that_is_never_released_costs_seconds_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_files, "_LOCK_SECONDS", 0.2)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys, time; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True);"
            "time.sleep(60)",
            str(tmp_path / ".lock"),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.send_signal(signal.SIGSTOP)
    try:
        with pytest.warns(RuntimeWarning, match="another process holds the lock"):
            assert BundleStore(tmp_path).write(evidence()) is None
    finally:
        holder.kill()
        holder.communicate()
    assert BundleStore(tmp_path).write(evidence()) is not None


def test_a_file_system_without_locks_does_not_lose_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(bundle_files.fcntl, "lockf", fails)
    assert BundleStore(tmp_path).write(evidence()) is not None


# Disks that are full or can't be written to


def assert_failures_do_not_stop_the_run(store: BundleStore, reason: str, given: Sequence[Evidence]) -> None:
    """Warned of once, counted each time, and nothing half-written stays."""
    seen: list[Notice] = []
    with warnings.catch_warnings(record=True) as warned, listen(seen.append):
        warnings.simplefilter("always")
        assert [store.write(each) for each in given] == [None] * len(given)
    assert [notice.labels["outcome"] for notice in seen] == ["failed"] * len(given)
    assert len(warned) == 1
    assert re.search(reason, str(warned[0].message))
    assert warned[0].filename == __file__  # where write was called
    if store.folder.is_dir():
        assert bundles(store.folder) == partials(store.folder) == []


@pytest.mark.parametrize("elements", [0, 10, 300_000], ids=["texts", "small tensors", "large tensors"])
def test_a_full_disk_does_not_stop_the_run(tiny_disk: Path, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_content, "_SPARE", -(1 << 40))  # it is written to until there is no space
    free = 4096 if elements < 1000 else 400_000
    (tiny_disk / "other").write_bytes(b"x" * (shutil.disk_usage(tiny_disk).free - free))
    store = BundleStore(tiny_disk / "bundles")
    assert_failures_do_not_stop_the_run(store, "No space left|os error 28", [evidence(elements=elements)] * 3)
    (tiny_disk / "other").unlink()
    assert store.write(evidence()) is not None  # there is space again


def test_a_disk_that_is_nearly_full_is_left_to_others(tiny_disk: Path) -> None:
    store = BundleStore(tiny_disk)
    assert_failures_do_not_stop_the_run(store, "would leave less than", [evidence()] * 2)


def test_a_limit_on_the_size_of_files_does_not_stop_the_run(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        store = BundleStore(tmp_path)
        assert_failures_do_not_stop_the_run(store, "File too large|os error 27", [evidence(elements=100_000)] * 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.write(evidence(elements=100_000)) is not None


def test_a_folder_that_cannot_be_made_does_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = BundleStore(tmp_path / "file" / "bundles")
    assert_failures_do_not_stop_the_run(store, "Not a directory", [evidence()] * 3)
    with pytest.warns(RuntimeWarning) as caught:
        BundleStore(tmp_path / "file" / "bundles").write(evidence())
    assert [warning.filename for warning in caught] == [__file__]


def test_a_folder_on_a_read_only_disk_does_not_stop_the_run() -> None:
    store = BundleStore("/proc/steadysum")
    assert_failures_do_not_stop_the_run(store, "No such file|Read-only|Permission", [evidence()] * 2)


def test_warnings_that_are_errors_do_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BundleStore(tmp_path / "file" / "bundles").write(evidence()) is None


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bundle_content, "_json_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        BundleStore(tmp_path).write(evidence())
    assert bundles(tmp_path) == partials(tmp_path) == []


def test_files_are_on_disk_before_the_bundle_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []  # path of what was synced, and whether the bundle had its name

    def record(handle: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{handle}"), bool(bundles(tmp_path))))

    monkeypatch.setattr(os, "fsync", record)
    path = BundleStore(tmp_path).write(evidence())
    assert path is not None
    before = [Path(name) for name, named in synced if not named]
    assert {each.name for each in before if not each.name.startswith(".partial")} == {
        each.name for each in path.iterdir()
    }
    assert before[-1].name.startswith(".partial")  # the names of its files
    assert synced[-1] == (str(tmp_path), True)  # and its own


def test_bundles_are_as_readable_as_the_users_other_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = BundleStore(tmp_path).write(evidence())
    finally:
        os.umask(before)
    assert path is not None
    assert path.stat().st_mode & 0o777 == 0o750
    assert {each.stat().st_mode & 0o777 for each in path.iterdir()} == {0o640}


def test_names_sort_by_time(tmp_path: Path) -> None:
    names = [bundle_files.new_name("é a/../b") for _ in range(50)]
    assert names == sorted(names, key=lambda name: name[: len("bundle-20260101T000000.000000000Z")])
    assert all(name.endswith("-a_.._b") for name in names)
    time.sleep(0.001)
    assert bundle_files.new_name("") > names[-1]
