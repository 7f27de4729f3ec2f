"""A monitored process: its figures are served and written, told from other processes', and survive its death."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steadysum.errors import MetricsAddressError, MetricsFileError, OptionError, RangeError
from steadysum.monitor.metrics_file import identity_of, read_metrics
from steadysum.monitor.process import Monitor, start
from steadysum.notices import heard, post

Begin = Callable[..., Monitor]
Scrape = Callable[[str | None], str]
Value = Callable[..., float | None]


def test_what_happens_is_served_while_the_monitor_runs(monitored: Begin, scrape: Scrape, value: Value) -> None:
    monitor = monitored()
    post("retry", operator="head")
    text = scrape(monitor.address)
    assert value(text, "steadysum_retries_total", operator="head", run="train", rank="0", pid=str(os.getpid())) == 1.0
    assert value(text, "steadysum_monitor_running") == 1.0
    monitor.stop()
    monitor.stop()
    assert not heard()
    with pytest.raises(OSError, match="refused"):
        scrape(monitor.address)


def test_promtool_has_nothing_against_what_is_served(monitored: Begin, scrape: Scrape, promtool: Any) -> None:
    monitor = monitored()
    post("sync", 0.004, point="exit", outcome="ok")
    post("anomaly", operator="head", check="Finite", attribution="transient")
    found = promtool("check", "metrics", text=scrape(monitor.address))
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_only_the_loopback_is_served_at_unless_the_user_says_so(monitored: Begin) -> None:
    address = monitored().address
    assert address is not None
    port = int(address.removesuffix("/metrics").rpartition(":")[2])
    other = socket.socket()
    with other:
        other.bind(("127.0.0.2", port))  # free: the monitor listens at 127.0.0.1 alone
    assert address.startswith("http://127.0.0.1:")
    everywhere = monitored(host="0.0.0.0").address
    assert everywhere is not None
    port = int(everywhere.removesuffix("/metrics").rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.2", port))


def test_a_taken_port_and_an_unknown_host_are_refused_before_anything_is_counted(monitored: Begin) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MetricsAddressError, match=f"address 127.0.0.1:{port}.*in use.*0 takes any") as refused:
            start(port=port)
    assert isinstance(refused.value, OSError)
    with pytest.raises(MetricsAddressError, match=r"address no\.such\.host\.invalid"):
        start(host="no.such.host.invalid", port=0)
    assert not heard()


@pytest.mark.parametrize("port", [-1, 65536, True, 80.0])
def test_a_port_that_there_is_not_is_refused(port: Any) -> None:
    with pytest.raises(RangeError, match="an integer from 0 to 65535"):
        start(port=port)


@pytest.mark.parametrize("interval", [0, -1.0, float("nan"), float("inf"), 1e6, True, "15"])
def test_an_interval_that_there_is_not_is_refused(interval: Any) -> None:
    with pytest.raises(RangeError, match="seconds, > 0 and at most 86400"):
        start(port=0, interval=interval)


def test_a_monitor_that_nobody_could_see_is_refused() -> None:
    with pytest.raises(OptionError, match="neither"):
        start(port=None)


def test_ranks_of_one_machine_serve_at_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("RANK", "10")
    with start(port=free - 2) as monitor:
        assert monitor.address == f"http://127.0.0.1:{free}/metrics"
        assert monitor.labels["rank"] == "10"


# ---- the file ------------------------------------------------------------------------------------------------------


def test_the_file_is_written_at_once_at_intervals_and_at_the_end(
    monitored: Begin, value: Value, tmp_path: Path
) -> None:
    file = tmp_path / "run.prom"
    monitor = monitored(port=None, file=file, interval=0.05)
    assert value(file.read_text(), "steadysum_monitor_running") == 1.0
    post("retry", operator="head")
    until = time.monotonic() + 10
    while value(file.read_text(), "steadysum_retries_total") != 1.0:
        assert time.monotonic() < until
        time.sleep(0.02)
    post("retry", operator="head")
    monitor.stop()
    assert value(file.read_text(), "steadysum_retries_total") == 2.0
    assert value(file.read_text(), "steadysum_monitor_running") == 0.0


def test_a_file_that_is_something_else_is_not_overwritten(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    with pytest.raises(MetricsFileError, match=r"isn't a run's metrics.*would be replaced"):
        start(port=None, file=script)
    assert script.read_text() == "print('hello')\n"


def test_the_file_of_an_earlier_run_is_overwritten(monitored: Begin, tmp_path: Path) -> None:
    file = tmp_path / "run.prom"
    monitored(run="first", port=None, file=file).stop()
    monitored(run="second", port=None, file=file)
    assert identity_of(read_metrics(file))["run"] == "second"


def test_a_folder_that_is_not_there_is_refused_at_once_and_frees_the_port(tmp_path: Path) -> None:
    with pytest.raises(MetricsFileError, match=r"No such file or directory.*Make the folder"):
        start(port=0, file=tmp_path / "none" / "run.prom")
    assert not heard()


@pytest.mark.filterwarnings("error")
def test_a_file_that_can_no_longer_be_written_warns_once_and_is_counted(
    monitored: Begin, scrape: Scrape, value: Value, tmp_path: Path
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    monitor = monitored(file=folder / "run.prom", interval=1000.0)
    (folder / "run.prom").unlink()
    folder.rmdir()
    with pytest.warns(RuntimeWarning, match="can't be written"):
        monitor._write()
    monitor._write()  # a second warning would be an error here
    assert value(scrape(monitor.address), "steadysum_metrics_file_write_failures_total") == 2.0
    monitor.stop()


def test_one_file_for_several_ranks_is_refused_and_a_folder_is_not(
    monkeypatch: pytest.MonkeyPatch, monitored: Begin, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "5")
    with pytest.raises(OptionError, match=r"rank of 8.*overwrite each other"):
        start(port=None, file=tmp_path / "run.prom")
    monitor = monitored(port=None, file=tmp_path)
    assert monitor.file is not None
    assert identity_of(read_metrics(monitor.file))["rank"] == "5"


# ---- real processes ------------------------------------------------------------------------------------------------

_TRAINING = """
import sys
import torch
import steadysum.monitor
from steadysum.notices import post

calls, ending, *file = sys.argv[1:]
monitor = steadysum.monitor.start(run="pretrain", port=0, file=file[0] if file else None, interval=0.1)
model = torch.nn.Linear(8, 16)
optimiser = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(int(calls)):
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimiser.step()
    post("call", operator="head", outcome="clean")
print(monitor.address, flush=True)
if ending == "wait":
    sys.stdin.read()
"""


class _Training:
    """A process that trains and is monitored; it prints its address once it has trained."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TRAINING, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )

    def address(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        self.process.communicate("", timeout=60)
        return self.process.returncode


def test_two_training_processes_with_an_exporter_each_are_told_apart_by_labels(scrape: Scrape, value: Value) -> None:
    ranks = [_Training(str(3 + rank), "wait", RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    try:
        texts = [scrape(training.address()) for training in ranks]
    finally:
        codes = [training.end() for training in ranks]
    assert codes == [0, 0]
    seen = []
    for rank, (training, text) in enumerate(zip(ranks, texts, strict=True)):
        own = {"run": "pretrain", "rank": str(rank), "pid": str(training.process.pid)}
        assert value(text, "steadysum_calls_total", outcome="clean", **own) == 3.0 + rank
        seen.append({line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")})
    assert seen[0]
    assert not seen[0] & seen[1]  # no series of one could be taken for the other's


def test_the_file_is_readable_after_the_process_was_killed_while_it_wrote(value: Value, tmp_path: Path) -> None:
    file = tmp_path / "run.prom"
    training = _Training("5", "wait", str(file))
    training.address()
    until = time.monotonic() + 30
    while value(file.read_text(), "steadysum_calls_total", outcome="clean") != 5.0:
        assert time.monotonic() < until
        time.sleep(0.02)
    training.process.send_signal(signal.SIGKILL)
    training.end()
    identity = identity_of(read_metrics(file))
    assert (identity["run"], identity["pid"]) == ("pretrain", str(training.process.pid))
    assert value(file.read_text(), "steadysum_monitor_running") == 1.0  # it did not end by itself


def test_a_process_that_ends_leaves_its_last_figures(value: Value, tmp_path: Path) -> None:
    file = tmp_path / "run.prom"
    training = _Training("4", "go", str(file))
    assert training.end() == 0
    assert value(file.read_text(), "steadysum_calls_total", outcome="clean") == 4.0
    assert value(file.read_text(), "steadysum_monitor_running") == 0.0


def test_a_forked_child_is_not_monitored_and_leaves_the_parents_port_and_file_alone(
    monitored: Begin, scrape: Scrape, value: Value, tmp_path: Path
) -> None:
    monitor = monitored(file=tmp_path / "run.prom", interval=1000.0)
    child = os.fork()
    if child == 0:
        post("retry", operator="child")
        monitor.stop()
        os._exit(int(heard()))
    assert os.waitpid(child, 0)[1] == 0
    assert value(scrape(monitor.address), "steadysum_retries_total", operator="child") is None
    assert value((tmp_path / "run.prom").read_text(), "steadysum_monitor_running") == 1.0
