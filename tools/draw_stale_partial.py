"""The two pictures of docs/stale-partial.md: the fault under policy `legacy`, and the cure under `enhanced`.

    python tools/draw_stale_partial.py

A device of four cores, one tile each; core 1 is late by three seconds when its tile is ready, which is longer than
sync_wait_timeout. Writes docs/pictures/stale-partial.svg and docs/pictures/enhanced.svg, and prints what the calls
gave.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from steadysum import linear_max_sum
from steadysum.cores.device import Device
from steadysum.cores.faults import Arm
from steadysum.settings import Settings
from steadysum.sync.hazard_report import hazards_text, marks
from steadysum.trace.timeline import draw_timeline

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
LATE = Arm("delay", core=1, site="tile ready", calls=1, most=3, microseconds=3e6)


def main() -> int:
    """Draws both; 1 if the pictures wouldn't show what they should."""
    FOLDER.mkdir(exist_ok=True)
    draw = torch.Generator().manual_seed(0)
    input, weight = torch.randn(256, 64, generator=draw), torch.randn(512, 64, generator=draw)
    expected = linear_max_sum(input, weight, kernel="reference").log_sum_exp
    wrong = {}
    for policy, name in (("legacy", "stale-partial.svg"), ("enhanced", "enhanced.svg")):
        device = Device(4, Settings(allreduce_policy=policy), (LATE,))
        found = device.linear_max_sum(input, weight).log_sum_exp
        wrong[policy] = int(((found - expected).abs() > 1e-3).sum())
        hazards = device.hazards()
        draw_timeline(device.trace(), FOLDER / name, marks(hazards))
        print(f"{policy}: {wrong[policy]} of {len(found)} rows are wrong; {len(hazards.manifest)} manifest hazards")
        if policy == "legacy":
            print(hazards_text(hazards._replace(found=hazards.manifest[:1])))
    return 0 if wrong["legacy"] and not wrong["enhanced"] else 1


if __name__ == "__main__":
    sys.exit(main())
