"""The pictures: what is in them, and an axis that copes with one core that is a thousand times later."""

from __future__ import annotations

import builtins
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from steadysum.errors import MissingExtraError, OptionError
from steadysum.trace.events import Event, Unit
from steadysum.trace.highlights import Highlight
from steadysum.trace.recorder import Trace
from steadysum.trace.text_timeline import text_timeline
from steadysum.trace.time_axis import axis_of, interval
from steadysum.trace.timeline import draw_timeline, timeline_figure

from .fake_call import fake_call

TEXT = "core 0 read core 1's slot before it was written"


def _stale(cores: int = 2, late: int = 1, lateness: float = 30.0) -> tuple[Trace, list[Highlight]]:
    """A call with a late core, and a highlight for each read that missed its write."""
    trace = fake_call(cores, late, lateness)
    write = next(
        place for place, event in enumerate(trace.events) if event.action == "drain" and event.unit.core == late
    )
    reads = [place for place, event in enumerate(trace.events) if event.outcome == "stale"]
    return trace, [Highlight(read, write, TEXT) for read in reads]


# ---- the axis -------------------------------------------------------------------------------------------------------


def _work(core: int, begin: float, length: float = 10.0) -> Event:
    return Event(0, 1, Unit(core, "v0"), "P2 tiles", "compute", begin, begin + length, "ok", (1, 2, 0))


nanoseconds = st.integers(0, 10**5) | st.integers(0, 10**10)


@given(st.lists(st.tuples(st.integers(0, 5), nanoseconds, nanoseconds), min_size=1, max_size=30))
def test_the_axis_keeps_the_order_of_times_and_all_of_them(works: list[tuple[int, int, int]]) -> None:
    events = [_work(core, begin / 1000, length / 1000) for core, begin, length in works]
    axis = axis_of(events)
    moments = sorted({time for event in events for time in (event.begin, event.end)})
    placed = [axis.place(moment) for moment in moments]
    assert placed == sorted(placed)
    assert placed[0] == 0.0
    assert placed[-1] == pytest.approx(1.0 if len(moments) > 1 else 0.0)
    for cut in axis.cuts:  # nothing begins or ends in what is cut out
        assert not any(cut.begin < moment < cut.end for moment in moments)
    assert all(not any(cut.begin < tick < cut.end for cut in axis.cuts) for tick in axis.ticks(14))


def test_a_core_that_comes_a_thousand_times_later_leaves_the_others_most_of_the_axis() -> None:
    events = [_work(core, 0.1 * core) for core in range(23)] + [_work(23, 10_000.0)]
    axis = axis_of(events)
    assert len(axis.cuts) == 1
    assert 12.2 <= axis.cuts[0].begin <= 13.0
    assert axis.place(12.2) > 0.4
    assert "cut out" in axis.note()


def test_a_core_that_is_a_thousand_times_slower_is_cut_as_well() -> None:
    events = [_work(core, 10.0 * step) for core in range(23) for step in range(5)]
    events += [_work(23, 10_000.0 * step, 10_000.0) for step in range(5)]
    assert axis_of(events).place(50.0) > 0.4


def test_an_ordinary_call_has_a_straight_axis() -> None:
    trace = fake_call(cores=24, late=None)
    axis = axis_of(trace.events)
    assert axis.cuts == ()
    assert axis.note() == ""
    end = max(event.end for event in trace.events)
    assert axis.place(end / 3) == pytest.approx(1 / 3)


def test_events_of_one_moment_and_without_a_clock_have_an_axis() -> None:
    assert axis_of([_work(0, 5.0, 0.0)]).place(5.0) == 0.0
    assert axis_of([_work(0, float(choice), 0.0) for choice in range(100)]).cuts == ()


def test_intervals_are_said_in_units_that_people_read() -> None:
    assert [interval(time) for time in (0.25, 250.0, 5100.0, 7.86e6)] == ["0.25 us", "250 us", "5.1 ms", "7.86 s"]


# ---- the picture ----------------------------------------------------------------------------------------------------


def test_the_svg_has_lanes_phases_barriers_and_the_late_write_in_words(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: extra `report`")
    trace, highlights = _stale()
    path = draw_timeline(trace, tmp_path / "timeline.svg", highlights)
    root = ElementTree.parse(path).getroot()
    texts = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for expected in ("core 0", "core 1", "cube", "v0", "P2 tiles", "P3 combine", "fault acts", "gave up waiting"):
        assert expected in texts
    assert TEXT in texts
    assert "barrier tiles: all there" in texts


def test_the_same_trace_gives_the_same_svg(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: extra `report`")
    trace, highlights = _stale()
    one = draw_timeline(trace, tmp_path / "one.svg", highlights).read_bytes()
    assert draw_timeline(trace, tmp_path / "two.svg", highlights).read_bytes() == one


@pytest.mark.parametrize(("cores", "lateness"), [(2, 30.0), (24, 2e6)])
def test_an_arrow_runs_from_the_late_write_to_the_read_that_missed_it(cores: int, lateness: float) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: extra `report`")
    trace, highlights = _stale(cores, cores - 1, lateness)
    axes = timeline_figure(trace, highlights[:1]).axes[0]
    axis = axis_of(trace.events)
    read, write = trace.events[highlights[0].reader_event], trace.events[highlights[0].writer_event]
    arrows: list[Any] = [text for text in axes.texts if getattr(text, "arrow_patch", None) is not None]
    assert len(arrows) == 1
    tip, tail = arrows[0].xy, arrows[0].xyann
    assert axis.place(read.begin) <= tip[0] <= axis.place(read.end) + 0.005
    assert tail[0] == pytest.approx(axis.place(write.end))
    assert tail[1] > tip[1]  # the last core's lane is below the first one's
    assert tail[0] > tip[0]  # back in time


def test_the_picture_says_that_its_axis_is_cut_and_how_many_events_were_dropped() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: extra `report`")
    trace, _ = _stale(lateness=2e6)
    figure = timeline_figure(Trace(trace.events, trace.what, dropped=7))
    said = " ".join(text.get_text() for text in figure.texts)
    assert "cut out, 2 s in all" in said
    assert "7 older events were dropped" in said
    assert "cut" in figure.axes[0].get_xlabel()


@pytest.mark.parametrize(("cores", "lateness"), [(4, 18.0), (4, 2e6), (24, 30.0)])
def test_labels_hide_no_end_of_an_arrow_and_no_other_label(tmp_path: Path, cores: int, lateness: float) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: extra `report`")
    trace, highlights = _stale(cores, cores - 1, lateness)
    figure = timeline_figure(trace, highlights)  # two units of each core but the late one
    figure.savefig(tmp_path / "any.png")
    axes = figure.axes[0]
    labels = [text.get_window_extent() for text in axes.texts if TEXT in text.get_text()]
    assert len(labels) == 3
    arrows: list[Any] = [text for text in axes.texts if getattr(text, "arrow_patch", None) is not None]
    assert len(arrows) == 2 * (cores - 1)
    for place, label in enumerate(labels):
        assert not any(label.overlaps(other) for other in labels[:place])
        for arrow in arrows:
            assert not label.contains(*axes.transData.transform(arrow.xy))
            assert not label.contains(*axes.transData.transform(arrow.xyann))


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r'pip install "steadysum\[report\]"'):
        timeline_figure(fake_call())


def test_an_unknown_ending_and_an_empty_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"\.svg or \.png"):
        draw_timeline(fake_call(), tmp_path / "timeline.jpg")
    with pytest.raises(OptionError, match="without events"):
        timeline_figure(Trace(()))
    with pytest.raises(OptionError, match="without events"):
        text_timeline(Trace(()))
    assert list(tmp_path.iterdir()) == []


# ---- in a terminal --------------------------------------------------------------------------------------------------


def test_the_text_has_a_row_for_each_unit_and_marks_what_went_wrong() -> None:
    trace, highlights = _stale()
    lines = text_timeline(trace, highlights, width=100).plain.splitlines()
    rows = {line[:11].strip(): line[12:] for line in lines[:6]}
    assert set(rows) == {f"core {core} {role}" for core in range(2) for role in ("cube", "v0", "v1")}
    assert "!" in rows["core 0 v0"]
    assert "T" in rows["core 0 v0"]
    assert "F" in rows["core 1 cube"]
    assert not set(rows["core 1 v0"]) & set("!TF")
    assert all(len(line) <= 100 for line in lines[:7])
    assert f"! {TEXT}" in lines


def test_the_text_shows_where_the_axis_is_cut() -> None:
    trace, _ = _stale(lateness=2e6)
    text = text_timeline(trace, width=80).plain
    assert all("/" in line for line in text.splitlines()[:6])
    assert "cut out, 2 s in all" in text
