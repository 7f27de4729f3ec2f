"""A picture of a trace: a lane for each unit, a bar for each action, and arrows for reads that came too early.

Drawn with matplotlib, of the extra `report`. Not here: the arrows (highlights.py), the time axis
(time_axis.py), the picture for a terminal (text_timeline.py).
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steadysum.errors import MissingExtraError, OptionError
from steadysum.trace.events import SYNC_ACTIONS, Event, Unit
from steadysum.trace.files import write_whole
from steadysum.trace.highlights import RED, Highlight, draw_highlights
from steadysum.trace.one_clock import in_sequence
from steadysum.trace.recorder import Trace
from steadysum.trace.time_axis import TimeAxis, axis_of, interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "Highlight", "draw_timeline", "timeline_figure"]

FORMATS: Final = ("svg", "png")


# Tableau's colours (matplotlib's tab10) without its red and yellow, which mean faults here. In the order of phases.
_PHASE_COLOURS: Final = ("#7f7f7f", "#17becf", "#1f77b4", "#9467bd", "#2ca02c", "#8c564b", "#e377c2")
_FAULT: Final = "#f2b701"
_GRID: Final = "#444444"
_WIDTH: Final = 15.0  # inches
_DPI: Final = 130


def draw_timeline(trace: Trace, path: Path | str, highlights: Sequence[Highlight] = ()) -> Path:
    """Draws a trace to a file, SVG or PNG by its name; gives back where.

    Raises:
        OptionError: the name ends otherwise, or the trace has no events.
        MissingExtraError: matplotlib isn't installed.
        OSError: the file can't be written.
    """
    file = Path(path)
    kind = file.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise OptionError(
            "picture", f"a file {file.name}", "a name that ends in .svg or .png", "Give it one of these endings."
        )
    figure = timeline_figure(trace, highlights)
    picture = io.BytesIO()
    # Without a date and with ids from a fixed salt, the same trace gives the same file.
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "steadysum", "svg.fonttype": "none"}):
        figure.savefig(picture, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
    write_whole(file, picture.getvalue())
    return file


def timeline_figure(trace: Trace, highlights: Sequence[Highlight] = ()) -> Figure:
    """The picture as a figure of matplotlib.

    Raises:
        OptionError: the trace has no events.
        MissingExtraError: matplotlib isn't installed.
    """
    if not trace.events:
        raise OptionError("timeline", "a trace without events", "one event or more", "Record a run first.")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "timeline as a picture",
            seen=f"no matplotlib ({error})",
            allowed="the extra `report`",
            remedy='pip install "steadysum[report]", or leave --output out for a timeline in the terminal.',
        ) from error
    events = in_sequence(trace.events)
    lanes = _lanes(events)
    axis = axis_of(events)
    rows = max(lanes.values()) + 1.6
    lane_height = min(max(9.0 / rows, 0.125), 0.36)  # inches
    height = rows * lane_height + _BELOW + _ABOVE
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((0.075, _BELOW / height, 0.91, rows * lane_height / height))
    axes.set_xlim(-0.005, 1.005)
    axes.set_ylim(max(lanes.values()) + 0.8, -0.8)
    phases = _phases(events)
    _draw_cores(axes, lanes)
    _draw_bars(axes, events, lanes, axis, phases)
    _draw_moments(axes, events, lanes, axis)
    _draw_barriers(axes, events, axis)
    _draw_cuts(axes, axis)
    draw_highlights(axes, events, lanes, axis, highlights, lane_height)
    _label_axes(axes, lanes, axis, lane_height)
    _legend(figure, events, phases, bool(highlights))
    figure.text(0.075, 1 - 0.12 / height, _title(trace, highlights), fontsize=11, weight="bold", va="top")
    figure.text(0.075, 1 - 0.36 / height, _subtitle(trace, events, axis), fontsize=8.5, color=_GRID, va="top")
    return figure


_BELOW: Final = 0.95  # inches: the axis and the legend
_ABOVE: Final = 1.05  # inches: the title and the names of barriers
_CORE_GAP: Final = 0.6  # lanes, between two cores


# ---- where things go ------------------------------------------------------------------------------------------------


def _lanes(events: Iterable[Event]) -> dict[Unit, float]:
    """By unit, the height of its lane; cores from top to bottom, units in the order in which they are named."""
    lanes: dict[Unit, float] = {}
    height, core = -1.0, None
    for unit in sorted({event.unit for event in events}):
        height += 1.0 + (_CORE_GAP if core is not None and unit.core != core else 0.0)
        lanes[unit], core = height, unit.core
    return lanes


def _phases(events: Sequence[Event]) -> dict[str, str]:
    """By phase, its colour: of its index in the program, so that pictures of parts of it agree; "" for no phase."""
    order: dict[str, int] = {}
    for event in events:
        order[event.phase] = min(order.get(event.phase, event.place[1]), event.place[1])
    order.pop("", None)
    colours: dict[str, str] = {}
    for name in sorted(order, key=lambda name: (order[name], name)):
        wanted = [_PHASE_COLOURS[(order[name] + more) % len(_PHASE_COLOURS)] for more in range(len(_PHASE_COLOURS))]
        colours[name] = next((colour for colour in wanted if colour not in colours.values()), wanted[0])
    return {**colours, "": _PHASE_COLOURS[0]}


def _title(trace: Trace, highlights: Sequence[Highlight]) -> str:
    what = trace.what
    parts = [f"policy {what['policy']}"] if "policy" in what else []
    if isinstance(what.get("shape"), list):
        parts.append(" x ".join(map(str, what["shape"])))
    cores = len({event.unit.core for event in trace.events if event.unit.core >= 0})
    parts.append(f"{cores} core{'s' * (cores != 1)} at work")
    if "call" in what:
        parts.append(f"call {what['call']}")
    if highlights:
        parts.append(f"{len(highlights)} access{'es' * (len(highlights) != 1)} went wrong")
    return ", ".join(parts)


def _subtitle(trace: Trace, events: Sequence[Event], axis: TimeAxis) -> str:
    length = max(event.end for event in events) - min(event.begin for event in events)
    parts = [f"{len(events)} events in {interval(length)}"]
    parts += [axis.note()] if axis.cuts else []
    parts += [f"{trace.dropped} older events were dropped"] if trace.dropped else []
    return "; ".join(parts)


# ---- what is drawn --------------------------------------------------------------------------------------------------


def _draw_cores(axes: Axes, lanes: dict[Unit, float]) -> None:
    cores: defaultdict[int, list[float]] = defaultdict(list)
    for unit, height in lanes.items():
        cores[unit.core].append(height)
    for heights in cores.values():
        axes.axhspan(min(heights) - 0.5, max(heights) + 0.5, color="#f3f3f1", zorder=0, linewidth=0)


def _draw_bars(
    axes: Axes, events: Sequence[Event], lanes: dict[Unit, float], axis: TimeAxis, phases: dict[str, str]
) -> None:
    bars: defaultdict[tuple[float, str, str], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.end > event.begin:
            left, right = axis.place(event.begin), axis.place(event.end)
            bars[lanes[event.unit], event.phase, _look(event)].append((left, right - left))
    for (height, phase, look), spans in bars.items():
        tall, style = _LOOKS[look]
        colour = _FAULT if look == "fault" else phases[phase]
        face = {"facecolor": "none", "edgecolor": colour, "alpha": 0.45} if look == "wait" else {"facecolor": colour}
        axes.broken_barh(spans, (height - tall / 2, tall), **{"linewidth": 0.0, "zorder": 2, **face, **style})


# How tall a bar is, in lanes, and what else sets it apart.
_LOOKS: Final[dict[str, tuple[float, dict[str, Any]]]] = {
    "work": (0.84, {}),
    "memory": (0.5, {}),
    "wait": (0.5, {"hatch": "//////", "linewidth": 0.3, "zorder": 1}),
    "fault": (0.84, {"hatch": "xxxx", "edgecolor": "#a07800"}),
}


def _look(event: Event) -> str:
    if event.action in SYNC_ACTIONS:
        return "wait"
    if event.action in ("compute", "fault"):
        return "work" if event.action == "compute" else "fault"
    return "memory"


def _draw_moments(axes: Axes, events: Sequence[Event], lanes: dict[Unit, float], axis: TimeAxis) -> None:
    """What has no length, or is to be seen though it is short."""
    marks: defaultdict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for event in events:
        for kind in _kinds(event):
            marks[kind][0].append(axis.place(event.begin if kind in ("fault", "drain") else event.end))
            marks[kind][1].append(lanes[event.unit])
    for kind, (lefts, heights) in marks.items():
        axes.plot(lefts, heights, linestyle="none", clip_on=False, **_MARKS[kind][1])


# By kind: what the legend calls it, how it looks.
_MARKS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "drain": (
        "words reach memory",
        {"marker": "|", "color": "#000000", "markersize": 3.0, "markeredgewidth": 0.5, "alpha": 0.45, "zorder": 3},
    ),
    "timeout": (
        "gave up waiting",
        {"marker": "|", "color": RED, "markersize": 8.0, "markeredgewidth": 1.6, "zorder": 4},
    ),
    "stale": (
        "stale read, refused",
        {"marker": "X", "color": RED, "markeredgecolor": "white", "markersize": 7.0, "zorder": 6},
    ),
    "fault": (
        "fault acts",
        {"marker": "v", "color": _FAULT, "markeredgecolor": "#a07800", "markersize": 6.5, "zorder": 5},
    ),
    "raised": ("raised an error", {"marker": "P", "color": RED, "markersize": 6.5, "zorder": 6}),
    "dead": ("dead", {"marker": "s", "color": "#000000", "markersize": 6.0, "zorder": 6}),
}


def _kinds(event: Event) -> list[str]:
    kinds = [event.outcome] if event.outcome in _MARKS else []
    if event.action in ("drain", "fault") and event.outcome != "dead":
        kinds.append(event.action)
    return kinds


def _draw_barriers(axes: Axes, events: Sequence[Event], axis: TimeAxis) -> None:
    """A line where the last unit has come to a barrier."""
    last: dict[tuple[int, str, str], float] = {}
    for event in events:
        if event.action == "barrier":
            key = event.epoch, event.phase, event.detail
            last[key] = max(last.get(key, event.begin), event.begin)
    used = [-1.0, -1.0, -1.0]  # how far each row of names is used
    for (_, _, name), time in sorted(last.items(), key=lambda item: item[1]):
        left = axis.place(time)
        text = f"barrier {name}: all there" if name else "barrier: all there"
        width = 0.0058 * len(text)
        turned = left + width > 1.01  # no room to the right of the line
        begin = left - width if turned else left
        row = next((row for row, right in enumerate(used) if right <= begin), len(used) - 1)
        used[row] = begin + width
        axes.axvline(left, color=_GRID, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2.5)
        axes.annotate(
            text,
            (left, 1.0),
            (-2 if turned else 2, 3 + 10 * row),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if turned else "left",
            fontsize=7.5,
            color=_GRID,
            annotation_clip=False,
        )


def _draw_cuts(axes: Axes, axis: TimeAxis) -> None:
    for cut in axis.cuts:
        left, right = axis.place(cut.begin), axis.place(cut.end)
        inset = 0.12 * (right - left)
        axes.axvspan(left + inset, right - inset, color="white", alpha=0.88, zorder=7, linewidth=0)
        for edge in (left + inset, right - inset):
            axes.axvline(edge, color=_GRID, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=8)
        axes.text(
            (left + right) / 2,
            0.02,
            f"{interval(cut.end - cut.begin)} cut out",
            transform=axes.get_xaxis_transform(),
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=8.5,
            color=_GRID,
            zorder=9,
        )


def _label_axes(axes: Axes, lanes: dict[Unit, float], axis: TimeAxis, lane_height: float) -> None:
    # Lanes too low for their names have the core's alone.
    small = lane_height < 0.2
    cores: defaultdict[int, list[float]] = defaultdict(list)
    for unit, height in lanes.items():
        cores[unit.core].append(height)
    named = [(sum(heights) / len(heights), "host" if core < 0 else f"core {core}") for core, heights in cores.items()]
    if small:
        axes.set_yticks([height for height, _ in named], [name for _, name in named], fontsize=8)
    else:
        axes.set_yticks(list(lanes.values()), [unit.role for unit in lanes], fontsize=8)
        for height, name in named:
            axes.annotate(
                name,
                (0.0, height),
                (-32, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=9,
                weight="bold",
            )
    ticks = axis.ticks(14)
    digits = max((len(f"{tick:.3f}".rstrip("0").partition(".")[2]) for tick in ticks), default=0)
    axes.set_xticks([axis.place(tick) for tick in ticks], [f"{tick:,.{digits}f}" for tick in ticks], fontsize=8)
    axes.set_xlabel("microseconds" + (" (the axis is cut)" if axis.cuts else ""), fontsize=9)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5, zorder=0.5)
    axes.set_axisbelow(True)


def _legend(figure: Figure, events: Sequence[Event], phases: dict[str, str], highlighted: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=colour, label=name) for name, colour in phases.items() if name]
    if any(event.action in SYNC_ACTIONS for event in events):
        handles.append(Patch(facecolor="white", edgecolor="#888888", hatch="//////", label="waits"))
    seen = {kind for event in events for kind in _kinds(event)}
    for kind, (name, style) in _MARKS.items():
        if kind in seen:
            handles.append(Line2D([], [], linestyle="none", label=name, **{**style, "alpha": 1.0, "markersize": 7.0}))
    if highlighted:
        style = {"color": RED, "marker": "D", "markeredgecolor": "white"}
        handles.append(Line2D([], [], label="late write, and what it came too late for", **style))
    figure.legend(handles=handles, loc="lower center", ncols=min(len(handles), 8), fontsize=8, frameon=False)
