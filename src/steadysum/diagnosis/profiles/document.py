"""The measurement as JSON. Schema `steadysum.profiles/1`: additions keep the number, a changed key raises it. Keys:

schema        "steadysum.profiles/1"
complete      false while it goes on, and if it was stopped; the file is rewritten every 20 seconds
command       what made it
created       time of this writing, ISO 8601, UTC
environment   {steadysum, python, torch, numpy, machine, isa, torch_threads}
load          the machine's load average at this writing: times on the wall are noisy where it isn't near 0
plan          {device, rates, calls, seed, confidence}; calls null: as many as each promise takes
promises      {profile: {right, cost, calls_needed}}
missing       null, or why the native kernel wasn't struck
left_out      {profile: faults that never act on the emulated device under its settings}
campaigns     [{device, subject: profile, or how the kernel verifies; faults: group; rate: asked for; planned, calls,
              void, answers, acted; right: [{repeats, calls, share, interval}]; near: {calls, share, interval}: within
              1e-3; other_bits, deviates, raised, raised_at_once; seconds, clean_seconds, cost: their ratio;
              by_fault: {fault: {outcome: answers}}}]
costs         [{device, subject, what, shape, ratio: {median, low, high}, rounds, seconds, baseline}] of clean calls
verdicts      [{profile, device, what, faults, rate, seen, interval, promised, verdict}]; faults and rate are null of
              clean costs
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, Final

from steadysum.diagnosis.document import created
from steadysum.diagnosis.environment import versions
from steadysum.diagnosis.profiles.campaign import REPEATS, Campaign
from steadysum.diagnosis.profiles.measure import Measurement
from steadysum.diagnosis.profiles.promises import PROMISES, Share, calls_needed, cost_verdict, share_verdict
from steadysum.diagnosis.rates import CONFIDENCE

__all__ = ["SCHEMA", "profiles_document"]

SCHEMA: Final = "steadysum.profiles/1"


def profiles_document(measurement: Measurement, command: str) -> dict[str, Any]:
    """The measurement as the schema above has it."""
    plan = measurement.plan
    return {
        "schema": SCHEMA,
        "complete": measurement.complete,
        "command": command,
        "created": created(),
        "environment": versions(),
        "load": os.getloadavg()[0],
        "plan": {
            "device": plan.device,
            "rates": list(plan.rates),
            "calls": plan.calls,
            "seed": plan.seed,
            "confidence": CONFIDENCE,
        },
        "promises": {
            name: {**PROMISES[name]._asdict(), "calls_needed": calls_needed(PROMISES[name].right)}
            for name in plan.profiles
        },
        "missing": measurement.missing,
        "left_out": {name: list(found) for name, found in measurement.left_out.items()},
        "campaigns": [_campaign(campaign) for campaign in measurement.campaigns],
        "costs": [
            {**cost._asdict(), "shape": list(cost.shape), "ratio": cost.ratio._asdict()} for cost in measurement.costs
        ],
        "verdicts": _verdicts(measurement),
    }


def _campaign(campaign: Campaign) -> dict[str, Any]:
    values = asdict(campaign)
    values["faults"], values["other_bits"] = campaign.group.value, values.pop("differs")
    values["by_fault"] = {name: dict(counts) for name, counts in campaign.faults.items()}
    del values["group"]
    return {
        **values,
        "right": [{"repeats": repeats, **_share(campaign.share_right(repeats))} for repeats in range(REPEATS + 1)],
        "near": _share(campaign.share_near),
        "cost": campaign.cost,
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "calls": share.number,
        "share": share.number / share.calls if share.calls else None,
        "interval": list(share.interval),
    }


def _verdicts(measurement: Measurement) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for profile in measurement.plan.profiles:
        promise = PROMISES[profile]
        for device in ("emulated", "native"):
            for campaign in measurement.campaigns_of(device, profile):
                shares = {
                    f"right after {repeats} repeats": campaign.share_right(repeats) for repeats in range(REPEATS + 1)
                }
                for what, share in {**shares, "within 1e-3": campaign.share_near}.items():
                    found.append(
                        {
                            "profile": profile,
                            "device": device,
                            "what": what,
                            "faults": campaign.group.value,
                            "rate": campaign.rate,
                            "seen": share.number / share.calls,
                            "interval": list(share.interval),
                            "promised": promise.right,
                            "verdict": share_verdict(share, promise.right).value,
                        }
                    )
            for cost in measurement.costs_of(device, profile):
                found.append(
                    {
                        "profile": profile,
                        "device": device,
                        "what": f"clean calls, {cost.what}",
                        "faults": None,
                        "rate": None,
                        "seen": cost.ratio.median - 1.0,
                        "interval": [cost.ratio.low - 1.0, cost.ratio.high - 1.0],
                        "promised": promise.cost,
                        "verdict": cost_verdict(cost.ratio, promise.cost).value,
                    }
                )
    return found
