"""The export opens in the Perfetto UI: its own trace processor reads every slice and arrow, and finds nothing wrong."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from steadysum.trace.chrome import chrome_document, chrome_text
from steadysum.trace.events import Event, Unit
from steadysum.trace.recorder import Trace

SCRIPT = Path(__file__).parents[2] / "tools" / "perfetto_screenshot.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("perfetto_screenshot", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _trace() -> Trace:
    cube, vector = Unit(0, "cube"), Unit(0, "v0")
    return Trace(
        (
            Event(0, 1, cube, "P2 tiles", "compute", 0.0, 10.0, "ok", (1, 2, 0), "product"),
            Event(1, 1, cube, "P2 tiles", "signal", 10.0, 10.05, "ok", (1, 2, 0), "tile ready"),
            Event(2, 1, vector, "P2 tiles", "await", 1.0, 10.4, "ok", (1, 2, 0), "tile ready", writes=(1,)),
            Event(3, 1, vector, "P3 combine", "read", 10.4, 10.6, "stale", (1, 3, 0)),
        )
    )


def test_the_perfetto_ui_shows_every_slice_and_arrow(script: ModuleType, tmp_path: Path) -> None:
    lacking = script.missing()
    if lacking is not None:
        pytest.skip(f"the Perfetto UI can't be opened: {lacking}")
    path, picture = tmp_path / "trace.json", tmp_path / "picture.png"
    path.write_text(chrome_text(_trace()))
    assert script.main([str(path), str(picture)]) == 0
    phases = [entry["ph"] for entry in chrome_document(_trace())["traceEvents"]]
    assert phases.count("s") == 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000  # an empty page has a tenth of it


def test_without_a_browser_it_says_what_is_missing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda _: None)
    assert script.main([str(tmp_path / "trace.json"), str(tmp_path / "picture.png")]) == script.SKIPPED
    assert "apt-get install chromium" in capsys.readouterr().out
