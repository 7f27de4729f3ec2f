"""What went wrong in a timeline: red arrows from late writes to the reads that missed them, and what to call them.

Not here: which those are (steadysum.sync.hazards), the rest of the picture (timeline.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from steadysum.trace.events import SYNC_ACTIONS, Event, Unit
from steadysum.trace.time_axis import TimeAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["RED", "Highlight", "draw_highlights"]


class Highlight(NamedTuple):
    """A read that came too early: an arrow from the write that it missed."""

    reader_event: int  # position in Trace.events
    writer_event: int  # position of the event in which the write reached memory, a drain
    text: str


class _Box(NamedTuple):
    """A rectangle: places on the axis, heights in lanes."""

    left: float
    right: float
    top: float
    bottom: float

    def shared(self, other: _Box) -> float:
        """The area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        tall = min(self.bottom, other.bottom) - max(self.top, other.top)
        return wide * tall if wide > 0 and tall > 0 else 0.0


RED: Final = "#d62728"
# A call in which a core misses everything has hundreds: what is beyond this only makes the picture red.
_MOST_ARROWS: Final = 60
_MOST_LABELS: Final = 3
_CHARACTER: Final = 0.0073  # of the axis' width, of the label's font
_LINE: Final = 0.21  # inches


def draw_highlights(
    axes: Axes,
    events: Sequence[Event],
    lanes: Mapping[Unit, float],
    axis: TimeAxis,
    highlights: Sequence[Highlight],
    lane_height: float,  # inches
) -> None:
    """An arrow for each highlight; a label for the first of each pair of cores, where it hides least."""
    pairs: defaultdict[tuple[int, int], list[Highlight]] = defaultdict(list)
    ends: list[_Box] = []  # of arrows: no label may hide them
    for highlight in highlights:
        reader, writer = events[highlight.reader_event], events[highlight.writer_event]
        pairs[reader.unit.core, writer.unit.core].append(highlight)
    for highlight in highlights[:_MOST_ARROWS]:
        ends += _draw_arrow(axes, events, lanes, axis, highlight)
    bars = [
        _Box(axis.place(event.begin), axis.place(event.end), lanes[event.unit] - 0.4, lanes[event.unit] + 0.4)
        for event in events
        if event.end > event.begin and event.action not in SYNC_ACTIONS
    ]
    bars += [_Box(axis.place(cut.begin), axis.place(cut.end), -1.0, max(lanes.values()) + 1.0) for cut in axis.cuts]
    labelled = sorted(pairs.values(), key=len, reverse=True)[:_MOST_LABELS]
    for group in labelled:
        ends.append(_draw_label(axes, events, lanes, axis, group, lane_height, bars, ends))
    hidden = len(highlights) - sum(map(len, labelled))
    if hidden > 0:
        axes.annotate(
            f"and {hidden} more between other cores",
            (1.0, 0.0),
            (0, -30),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            va="center",
            color=RED,
            fontsize=9,
            weight="bold",
        )


def _draw_arrow(
    axes: Axes, events: Sequence[Event], lanes: Mapping[Unit, float], axis: TimeAxis, highlight: Highlight
) -> list[_Box]:
    reader, writer = events[highlight.reader_event], events[highlight.writer_event]
    start = axis.place(writer.end), lanes[writer.unit]
    left = axis.place(reader.begin)
    right = max(axis.place(reader.end), left + 0.004)
    height = lanes[reader.unit]
    # To the nearer edge of the read's bar, which is painted red and so hides nothing that isn't.
    end = right if start[0] >= right else left
    axes.annotate(
        "",
        (end, height),
        start,
        arrowprops={
            "arrowstyle": "-|>,head_width=0.35,head_length=0.7",
            "color": RED,
            "linewidth": 1.5,
            "shrinkA": 3,
            "shrinkB": 0,
        },
        zorder=10,
    )
    axes.plot(*start, marker="D", color=RED, markersize=5, markeredgecolor="white", zorder=11)
    axes.broken_barh(
        [(left, right - left)], (height - 0.5, 1.0), facecolor=RED, edgecolor="white", linewidth=0.8, zorder=10.5
    )
    return [
        _Box(left - 0.005, right + 0.02, height - 0.6, height + 0.6),
        _Box(start[0] - 0.006, start[0] + 0.006, start[1] - 0.6, start[1] + 0.6),
    ]


def _draw_label(
    axes: Axes,
    events: Sequence[Event],
    lanes: Mapping[Unit, float],
    axis: TimeAxis,
    group: Sequence[Highlight],
    lane_height: float,
    bars: Sequence[_Box],
    taken: Sequence[_Box],
) -> _Box:
    reader, writer = events[group[0].reader_event], events[group[0].writer_event]
    start = axis.place(writer.end), lanes[writer.unit]
    end = axis.place(reader.end), lanes[reader.unit]
    text = group[0].text + (f"\n(and {len(group) - 1} more between these cores)" if len(group) > 1 else "")
    lines = text.split("\n")
    wide = _CHARACTER * max(map(len, lines)) + 0.012
    lowest, highest = axes.get_ylim()
    tall = (_LINE * len(lines) + 0.08) / lane_height
    best, hides = _Box(0.0, wide, 0.0, tall), float("inf")
    for step in range(25):
        middle = min(max(step / 24, wide / 2), 1 - wide / 2)
        share = (middle - end[0]) / (start[0] - end[0]) if start[0] != end[0] else 0.5
        along = end[1] + min(max(share, 0.0), 1.0) * (start[1] - end[1])
        for off in (-3.0, -2.0, -1.5, -1.0, -0.6, 0.6, 1.0, 1.5, 2.0, 3.0):
            height = min(max(along + off * tall, highest + tall / 2), lowest - tall / 2)
            box = _Box(middle - wide / 2, middle + wide / 2, height - tall / 2, height + tall / 2)
            covered = sum(map(box.shared, bars)) + 20 * sum(map(box.shared, taken))
            # Of places that hide as little, one by the arrow's middle.
            far = 0.02 * tall * (abs(off) + 4 * abs(share - 0.5))
            if covered + far < hides:
                best, hides = box, covered + far
    axes.text(
        (best.left + best.right) / 2,
        (best.top + best.bottom) / 2,
        text,
        ha="center",
        va="center",
        fontsize=9.5,
        weight="bold",
        color=RED,
        zorder=12,
        bbox={"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": RED, "linewidth": 1.2},
    )
    return best
