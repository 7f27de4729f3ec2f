"""The profiles, and the measurement, as tables for a terminal, from 100 columns on. The same as JSON: document.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich import box
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from steadysum.diagnosis.profiles.campaign import REPEATS, Campaign, Group
from steadysum.diagnosis.profiles.costs import CleanCost
from steadysum.diagnosis.profiles.measure import Measurement
from steadysum.diagnosis.profiles.plan import BASELINE, verify_of
from steadysum.diagnosis.profiles.promises import (
    PROMISES,
    Share,
    Verdict,
    cost_verdict,
    share_verdict,
)
from steadysum.settings import PROFILES

__all__ = ["render_measurement", "render_profiles"]

_STYLES: Final = {Verdict.MET: "green", Verdict.MISSED: "bold red", Verdict.OPEN: "yellow"}
_SHOWN_REPEATS: Final = (0, 1, REPEATS)


def render_profiles() -> RenderableType:
    """Each profile's settings, and what the field report promises of it."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("profile", "settings", "native kernel", "right calls", "cost"):
        table.add_column(heading, overflow="fold")
    for name, settings in PROFILES.items():
        values = ", ".join(f"{key}={value}" for key, value in settings.items())
        promise = PROMISES[name]
        table.add_row(name, values, f"verify={verify_of(name)}", _above(promise.right), f"< {100 * promise.cost:g} %")
    hint = Text("The promises are the field report's. `steadysum profiles --measure` measures them here.", style="dim")
    return Lines(table, hint)


def render_measurement(measurement: Measurement) -> RenderableType:
    """All tables, and what to know of them."""
    plan, parts = measurement.plan, list[RenderableType]()
    for device, measured in (("emulated", plan.emulates), ("native", plan.runs_native)):
        if not measured:
            continue
        if any(campaign.device == device and campaign.calls for campaign in measurement.campaigns):
            parts += [_shares(measurement, device), _campaign_costs(measurement, device)]
        if any(cost.device == device for cost in measurement.costs):
            parts.append(_clean_costs(measurement, device))
    parts += [Text(line, style="dim") for line in _notes(measurement)]
    if measurement.missing is not None:
        parts.append(Text(f"Faults in the native kernel weren't measured: {measurement.missing}.", style="yellow"))
    if not measurement.complete:
        parts.append(Text("Stopped early: the tables hold what there is.", style="yellow"))
    return Lines(*parts)


def _shares(measurement: Measurement, device: str) -> Table:
    is_emulated = device == "emulated"
    title = "on the emulated device" if is_emulated else "by the native kernel"
    table = Table(title=f"right calls {title}", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("profile", "faults"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rate", "calls", "wrong", "raised"):
        table.add_column(heading, justify="right")
    headings = ["right at once", "repeated once", f"up to {REPEATS} times"] if is_emulated else ["right", "within 1e-3"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for profile in (BASELINE, *measurement.plan.profiles):
        promised = PROMISES[profile].right if profile in PROMISES else None
        for campaign in measurement.campaigns_of(device, profile):
            table.add_row(
                profile,
                campaign.group.value,
                f"{100 * campaign.rate:g} %",
                str(campaign.calls),
                str(campaign.differs + campaign.deviates),
                str(campaign.raised_at_once),
                *(_share_cell(share, promised) for share in _shares_of(campaign, is_emulated)),
            )
    return table


def _shares_of(campaign: Campaign, is_emulated: bool) -> Iterator[Share]:
    if is_emulated:
        yield from (campaign.share_right(repeats) for repeats in _SHOWN_REPEATS)
    else:
        yield from (campaign.share_right(REPEATS), campaign.share_near)


def _share_cell(share: Share, promised: float | None) -> Text:
    low, high = share.interval
    seen, interval = f"{_percent(share.number / share.calls)} %", f"[{_percent(low)}, {_percent(high)}]"
    if promised is None:
        return Text(f"{seen}\n{interval}")
    verdict = share_verdict(share, promised)
    first = _above(promised) if verdict is Verdict.MET else f"{seen} {verdict.value}"
    return Text(f"{first}\n{interval}", style=_STYLES[verdict])


def _clean_costs(measurement: Measurement, device: str) -> Table:
    clock = "virtual clock" if device == "emulated" else "wall clock"
    against = "policy legacy" if device == "emulated" else 'verify="off"'
    table = Table(title=f"cost of clean calls ({clock}), over {against}", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("profile", "where", "shape"):
        table.add_column(heading)
    for heading in ("cost", "95 %", "promised"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for profile in measurement.plan.profiles:
        for cost in measurement.costs_of(device, profile):
            table.add_row(profile, *_cost_cells(cost, PROMISES[profile].cost))
    return table


def _cost_cells(cost: CleanCost, promised: float) -> tuple[str | Text, ...]:
    verdict = cost_verdict(cost.ratio, promised)
    median, low, high = (f"{100 * (value - 1):+.1f} %" for value in cost.ratio)
    shape = " x ".join(map(str, cost.shape))
    return (
        cost.what,
        shape,
        median,
        f"{low} to {high}",
        f"< {100 * promised:g} %",
        Text(verdict.value, _STYLES[verdict]),
    )


def _campaign_costs(measurement: Measurement, device: str) -> Table:
    table = Table(
        title="total time of the campaigns, over that of the same calls clean and unguarded",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("profile", "faults"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rate", "total / clean", "total / legacy's with the same faults"):
        table.add_column(heading, justify="right")
    baselines = {
        (campaign.group, campaign.rate): campaign.cost for campaign in measurement.campaigns_of(device, BASELINE)
    }
    for profile in (BASELINE, *measurement.plan.profiles):
        for campaign in measurement.campaigns_of(device, profile):
            base = baselines.get((campaign.group, campaign.rate))
            beside = f"{campaign.cost / base:.3g}" if campaign.cost and base else ""
            table.add_row(
                profile, campaign.group.value, f"{100 * campaign.rate:g} %", f"{campaign.cost or 0:.4g}", beside
            )
    return table


def _notes(measurement: Measurement) -> Iterator[str]:
    plan = measurement.plan
    yield "A share is shown as `> 99.9 %` only where its whole 95 % interval lies above; open: more calls would tell."
    yield "wrong: other bits than the fault-free call's. raised: calls that raised before any repeat."
    if plan.emulates:
        yield (
            f"{Group.EXCHANGE.value}: faults in what cores exchange. {Group.ALL.value}: also in the program, in "
            "operands, and in a unit's own work, which policy enhanced doesn't check."
        )
        yield "A fault that makes a core late costs whole waits, of seconds; a clean call takes microseconds."
    if plan.runs_native:
        yield (
            f"{Group.COVERED.value}: faults in operands, logits and partials. {Group.ALL.value}: also in exp and sum, "
            "which are checked at a sampled rate. The native kernel verifies alike under all profiles."
        )


def _above(share: float) -> str:
    return f"> {100 * share:g} %"


def _percent(share: float) -> str:
    """With as many digits as it takes to tell it from 99.99 %, and never rounded up to 100."""
    text = f"{100 * share:.3f}" if share >= 0.95 else f"{100 * share:.1f}"
    return "99.999" if text == "100.000" and share < 1.0 else "100" if share == 1.0 else text
