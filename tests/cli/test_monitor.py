"""Tests of `steadysum monitor` as a user sees it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steadysum.monitor.process import Monitor, start
from steadysum.notices import post

Command = Callable[..., Any]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The metrics that a run has left."""
    path = tmp_path / "run.prom"
    with start(run="pretrain", port=None, file=path):
        post("call", operator="head", outcome="clean")
        post("call", operator="head", outcome="raised")
    return path


@pytest.fixture
def running() -> Iterator[Monitor]:
    with start(run="live", port=0) as monitor:
        post("retry", operator="head")
        yield monitor


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_show_has_the_figures_of_a_file(steadysum: Command, file: Path) -> None:
    shown = steadysum("monitor", "show", str(file))
    assert shown.code == 0
    assert f"run pretrain, rank 0, pid {os.getpid()}: ended" in shown.out
    assert ["head", "2", "1", "0", "0", "1", "0", "0", "0"] in [line.split() for line in shown.out.splitlines()]


def test_show_has_the_figures_of_a_running_process(steadysum: Command, running: Monitor) -> None:
    shown = steadysum("monitor", "show", running.address)
    assert shown.code == 0
    assert "run live" in shown.out
    assert "running" in shown.out


def test_show_writes_json(steadysum: Command, file: Path, tmp_path: Path) -> None:
    shown = steadysum("monitor", "show", str(file), "--json", str(tmp_path / "figures.json"))
    assert shown.code == 0
    document = json.loads((tmp_path / "figures.json").read_text())
    assert document["processes"][0]["operators"][0]["calls"] == {"clean": 1, "fallback": 0, "healed": 0, "raised": 1}


def test_show_leaves_a_bad_file_of_a_folder_out_and_says_so(steadysum: Command, file: Path) -> None:
    (file.parent / "bad.prom").write_text("x")
    shown = steadysum("monitor", "show", str(file.parent))
    assert shown.code == 0
    assert "pretrain" in shown.out
    assert "left out: metrics file" in shown.err
    assert "bad.prom" in shown.err


def test_show_of_an_empty_folder_says_that_there_is_nothing(steadysum: Command, tmp_path: Path) -> None:
    shown = steadysum("monitor", "show", str(tmp_path))
    assert (shown.code, shown.out.strip()) == (0, "no metrics files there")


def test_what_is_not_there_ends_with_two_and_a_hint(steadysum: Command, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{_free_port()}/metrics"
    for source, message in (
        (str(tmp_path / "none.prom"), "no such file"),
        (address, "Connection refused"),
        ("http://127.0.0.1:99999/metrics", "metrics at http://127.0.0.1:99999/metrics"),
        ("http://", "metrics at http://"),
    ):
        shown = steadysum("monitor", "show", source)
        assert shown.code == 2
        assert message in shown.err
        assert "steadysum.monitor.start(" in shown.err


def test_a_server_of_something_else_is_refused(steadysum: Command, tmp_path: Path) -> None:
    port = _free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        for path, message in (("", "isn't in Prometheus's format"), ("metrics", "File not found")):
            shown = steadysum("monitor", "show", f"http://127.0.0.1:{port}/{path}")
            assert shown.code == 2
            assert message in shown.err
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_for(port: int) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_serve_serves_a_file_until_ctrl_c(steadysum: Command, file: Path) -> None:
    port = _free_port()
    seen: list[str] = []

    def visit() -> None:
        try:
            _wait_for(port)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                seen.append(answer.read().decode())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    visitor = threading.Thread(target=visit)
    visitor.start()
    served = steadysum("monitor", "serve", str(file), "--port", str(port))
    visitor.join()
    assert served.code == 0
    assert f"serving at http://127.0.0.1:{port}/metrics" in served.out
    assert 'steadysum_calls_total{operator="head",outcome="raised",' in seen[0]


def test_serve_refuses_a_bad_file_and_a_taken_port_before_it_serves(
    steadysum: Command, file: Path, running: Monitor
) -> None:
    (file.parent / "bad.prom").write_text("x")
    refused = steadysum("monitor", "serve", str(file.parent / "bad.prom"))
    assert (refused.code, "doesn't begin as metrics of steadysum do" in refused.err) == (2, True)
    assert running.address is not None
    port = running.address.removesuffix("/metrics").rpartition(":")[2]
    taken = steadysum("monitor", "serve", str(file), "--port", port)
    assert (taken.code, "Address already in use" in taken.err) == (2, True)


def test_save_writes_rules_and_dashboard_to_a_new_folder(steadysum: Command, tmp_path: Path) -> None:
    saved = steadysum("monitor", "save", str(tmp_path / "new" / "monitoring"))
    assert saved.code == 0
    names = {path.name for path in (tmp_path / "new" / "monitoring").iterdir()}
    assert names == {"steadysum.rules.yml", "steadysum.rules.test.yml", "steadysum.json"}
    assert all(name in saved.out for name in names)


def test_without_the_extra_it_says_how_to_install_it(steadysum: Command, file: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "prometheus_client"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ImportError('not installed')\n")
    done = subprocess.run(
        [sys.executable, "-m", "steadysum", "monitor", "show", str(file)],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "no package prometheus_client" in done.stderr
    assert "pip install 'steadysum[monitor]'" in done.stderr
