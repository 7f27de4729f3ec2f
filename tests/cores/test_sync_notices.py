"""The device tells whoever listens how long its units waited, and nobody else pays for it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from steadysum.cores import sync_notices
from steadysum.cores.device import Device
from steadysum.cores.faults import Arm
from steadysum.cores.grid import Geometry
from steadysum.errors import StaleRead
from steadysum.monitor.metrics import SYNC_OUTCOMES
from steadysum.notices import Notice, listen
from steadysum.settings import Settings
from steadysum.trace.latency import latency_of

X = torch.linspace(-1.0, 1.0, 8 * 16).reshape(8, 16)
W = torch.linspace(1.0, -2.0, 32 * 16).reshape(32, 16)


def _device(policy: int, *faults: str, keeps_log: bool = True) -> Device:
    settings = Settings(allreduce_policy=policy, max_retries=1, sync_wait_timeout=1.0)
    arms = tuple(map(Arm.parse, faults))
    return Device(cores=4, geometry=Geometry(4, 8), settings=settings, faults=arms, keeps_log=keeps_log)


def _told(device: Device) -> list[Notice]:
    told: list[Notice] = []
    with listen(told.append):
        try:
            device.linear_max_sum(X, W)
        except StaleRead:
            assert device.last is not None
            assert device.last.error is not None
    assert {notice.kind for notice in told} == {"sync"}
    return told


@pytest.mark.parametrize("policy", range(4))
def test_every_wait_of_a_call_is_told_with_its_time(policy: int) -> None:
    device = _device(policy)
    told = _told(device)
    for point in latency_of(device.trace()).points:
        name = f"{point.phase}: {point.action} {point.detail}"
        seconds = [notice.value for notice in told if notice.labels["point"] == name]
        assert len(seconds) == point.waits.count
        assert sum(seconds) == pytest.approx(point.waits.total * 1e-6, rel=1e-9)
        assert max(seconds) == pytest.approx(point.waits.max * 1e-6, rel=1e-12)
    assert {notice.labels["outcome"] for notice in told} == {"ok"}


def test_the_waits_of_a_device_without_a_log_are_told_too() -> None:
    assert _told(_device(1, keeps_log=False)) == _told(_device(1))


def test_a_late_core_is_told_as_waits_that_timed_out() -> None:
    device = _device(0, "delay:core=2,site=tiles,microseconds=5000")
    told = _told(device)
    assert device.fault_counts() != {"delay": 0}
    timed_out = [notice for notice in told if notice.labels["outcome"] == "timeout"]
    assert {notice.labels["point"] for notice in timed_out} == {"P2 tiles: barrier tiles"}
    assert all(notice.value >= 1e-3 for notice in timed_out)  # sync_wait_timeout, 1 ms


def test_a_record_that_is_refused_makes_the_wait_before_it_stale() -> None:
    told = _told(_device(1, "stale:site=max"))
    outcomes = Counter(notice.labels["outcome"] for notice in told)
    assert outcomes["stale"] > 0
    assert outcomes.keys() <= set(SYNC_OUTCOMES)


def test_every_launch_of_a_call_that_is_launched_again_is_told() -> None:
    device = _device(1, "torn:probability=0.05")
    told: list[Notice] = []
    for _ in range(40):
        told = _told(device)
        assert device.last is not None
        if device.last.retries and device.last.error is None:
            break
    else:
        pytest.fail("the fault never made the device launch again and succeed")
    assert len(told) == sum(point.waits.count for point in latency_of(device.trace()).points)  # of all launches


def test_with_nobody_listening_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise AssertionError("events were made")

    monkeypatch.setattr(sync_notices, "events", fails)
    _device(1).linear_max_sum(X, W)
