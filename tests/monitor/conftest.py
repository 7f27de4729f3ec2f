"""What the tests of monitor/ share: promtool, and figures read from text."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import parser

from steadysum.monitor.labels import RUN_VARIABLE
from steadysum.monitor.process import Monitor, start

Promtool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def promtool() -> Promtool:
    """Runs promtool with some arguments, and text on its standard input."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is missing: apt-get install prometheus")

    def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run([path, *arguments], input=text, capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is nobody's rank."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", RUN_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def monitored() -> Iterator[Callable[..., Monitor]]:
    """Starts monitors at free ports, and stops them after the test."""
    started: list[Monitor] = []

    def begin(**options: Any) -> Monitor:
        started.append(start(**{"run": "train", "port": 0, **options}))
        return started[-1]

    yield begin
    for monitor in started:
        monitor.stop()


@pytest.fixture
def scrape() -> Callable[[str | None], str]:
    """The text that an address serves."""

    def get(address: str | None) -> str:
        assert address is not None
        with urllib.request.urlopen(address, timeout=30) as answer:
            return str(answer.read().decode())

    return get


@pytest.fixture
def value() -> Callable[..., float | None]:
    """The value of the one series in a text that has a name and these labels among its own; None: there is none."""

    def find(text: str, name: str, **labels: str) -> float | None:
        found = [
            sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) <= 1, f"{len(found)} series are {name} {labels}"
        return found[0] if found else None

    return find
