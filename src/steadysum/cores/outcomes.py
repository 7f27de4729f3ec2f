"""What each kind of fault comes to under each policy: the table kind x policy, by trial.

A trial is two calls on a small device, with other operands each; the fault is armed in the second, so that what is
stale is wrong. The table is made by tools/fault_table.py, stands in docs/policies.md, and is held true by the tests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.cores.device import Device
from steadysum.cores.faults import Arm
from steadysum.cores.grid import Geometry
from steadysum.errors import AccuracyError, StaleRead, SyncTimeout
from steadysum.settings import Settings
from steadysum.sync.actions import Note
from steadysum.sync.virtual import VirtualRunner

__all__ = ["ORDERS", "SCENARIOS", "Cell", "Outcome", "Scenario", "try_scenario"]

# A small problem of several row blocks, two tiles of one row block on a core, ragged tiles at both ends, and rows in P3
# for every vector unit.
ROWS, HIDDEN, VOCAB, CORES, TILE = 90, 3, 140, 3, Geometry(32, 32)
ORDERS: Final = ("clock", "random", "pct")


class Outcome(StrEnum):
    """What became of the calls in which a fault acted."""

    VOID = "never acted"
    WRONG = "wrong result"  # at least one call returned other bits than the fault-free one, and nobody said so
    RAISED = "raised"  # none did; at least one call raised, naming the core
    HEALED = "healed"  # all were right; a policy noticed, and tried again
    PREVENTED = "prevented"  # all were right, and nothing had to be tried again


class Scenario(NamedTuple):
    """A fault, as the table has it."""

    name: str
    arm: str  # Arm.parse reads it
    why: str  # why the policies come to what they come to
    named: tuple[int, ...] = ()  # the cores at fault, one of which an error must name; (): it isn't a core's fault
    beside: bool = (
        False  # an error may name one more: a reader's fault looks like the writer's, and the other way round
    )

    def is_named_right(self, cores: Collection[int]) -> bool:
        """Whether an error that names these cores names who is at fault, and nobody who can't be."""
        if not self.named:
            return True
        found = set(cores)
        return bool(found & set(self.named)) and len(found - set(self.named)) <= int(self.beside)


class Cell(NamedTuple):
    """What trials of a scenario under a policy came to."""

    acted: int
    right: int
    wrong: int
    raised: int
    noticed: int
    misnamed: int  # errors that don't name a core at fault, or name others that they may not

    @property
    def outcome(self) -> Outcome:
        """The worst of what happened."""
        if not self.acted:
            return Outcome.VOID
        if self.wrong:
            return Outcome.WRONG
        if self.raised:
            return Outcome.RAISED
        return Outcome.HEALED if self.noticed else Outcome.PREVENTED


def try_scenario(scenario: Scenario, policy: int, trials: Sequence[int], orders: Sequence[str] = ORDERS) -> Cell:
    """Runs the trials of these seeds, in each order.

    Args:
        scenario: the fault.
        policy: number of the policy.
        trials: seeds.
        orders: schedulers of VirtualRunner.
    """
    counts = [_trial(scenario, policy, seed, order) for seed in trials for order in orders]
    return Cell(*(sum(column) for column in zip(*counts, strict=True)))


def _trial(scenario: Scenario, policy: int, seed: int, order: str) -> tuple[int, int, int, int, int, int]:
    settings = Settings(allreduce_policy=policy)
    arm = Arm.parse(f"{scenario.arm}{',' if ':' in scenario.arm else ':'}calls=2")
    device = Device(CORES, settings, (arm,), seed=seed, runner=VirtualRunner(seed, order), geometry=TILE)
    clean = Device(CORES, settings, geometry=TILE)
    first, second = _operands(2 * seed), _operands(2 * seed + 1)
    expected = [_call(clean, operands) for operands in (first, second)]
    # Under policy 0 even the first call may be wrong where a scheduler has no clock: it has no fence. That is no fault.
    _call(device, first)
    try:
        found = _call(device, second)
    except (SyncTimeout, StaleRead, AccuracyError) as error:
        acted = sum(device.fault_counts().values())
        return acted, 0, 0, 1, 1, int(not scenario.is_named_right(error.cores))
    acted = sum(device.fault_counts().values())
    right = all(torch.equal(*pair) for pair in zip(found, expected[1], strict=True))
    return acted, int(right), int(not right), 0, int(_is_noticed(device, order)), 0


def _is_noticed(device: Device, order: str) -> bool:
    """Whether the policy tried anything again for the fault: without a clock waits time out though nothing is wrong."""
    call = device.last
    assert call is not None
    notes = [entry.action for run in call.runs for entry in run.log if isinstance(entry.action, Note)]
    return call.retries > 0 or any(order == "clock" or note.outcome != "timeout" for note in notes)


def _call(device: Device, operands: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    found = device.fused_linear_online_max_sum(*operands, 0, VOCAB)
    return tuple(part.contiguous().view(torch.uint8) for part in found if part is not None)


def _operands(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Small whole numbers: every product is exact, so that a checksum sees each change of a logit."""
    draw = torch.Generator().manual_seed(seed)
    return (
        torch.randint(-3, 4, (ROWS, HIDDEN), generator=draw).float(),
        torch.randint(-3, 4, (VOCAB, HIDDEN), generator=draw).float(),
        torch.randint(0, VOCAB, (ROWS,), generator=draw),
    )


SCENARIOS: Final = (
    Scenario(
        "delay",
        "delay:site=tile ready,core=1,role=v0,most=1",
        "The others wait again, max_retries times; policy 0 waits once.",
        (1,),
    ),
    Scenario(
        "slow",
        "slow:core=1,factor=3e6",
        "As a delay, in every step.",
        (1,),
    ),
    Scenario(
        "dead",
        "dead:core=1,phase=P2",
        "The barrier's flags name the core; with a dead core there is no result to return.",
        (1,),
    ),
    Scenario(
        "stale, once",
        "stale:site=max,core=0,phase=P3,most=1",
        "The digest doesn't fit: the record is read again.",
        (0,),
        beside=True,
    ),
    Scenario(
        "stale, always",
        "stale:site=max,core=0,phase=P3,age=9",
        "The digest doesn't fit, however often it is read; the error names the reader beside the writer.",
        (0,),
        beside=True,
    ),
    Scenario(
        "dropped, once",
        "dropped:site=sum,core=1,phase=P2,most=1",
        "The writer reads its record back, and writes it again.",
        (1,),
    ),
    Scenario(
        "dropped, always",
        "dropped:site=sum,core=1,phase=P2",
        "The writer reads its record back, and gives up after max_retries.",
        (1,),
    ),
    Scenario(
        "duplicated",
        "duplicated:site=tile,core=1",
        "A record counts its tiles: one that is in it isn't merged again.",
    ),
    Scenario(
        "torn",
        "torn:site=max,core=1,phase=P2,most=1",
        "The digest covers the whole record: the writer reads it back, and writes it again.",
        (1,),
    ),
    Scenario(
        "reordered",
        "reordered:site=max,core=1,phase=P2,most=1",
        "A reader that finds words missing reads again; here the next write of the slot, in order, came first.",
        (1,),
        beside=True,
    ),
    Scenario(
        "overrun, barrier",
        "overrun:site=tiles,core=1,most=1",
        "A reader that comes too early finds no stamp of this call, and reads again.",
        (1,),
        beside=True,
    ),
    Scenario(
        "overrun, buffer",
        "overrun:site=buffer free,core=1,lead=99",
        "The half tile's stamp names another tile: the product is gone, and the call is launched again; "
        "max_retries times, for here every wait fails.",
        (1,),
    ),
    Scenario(
        "reset",
        "reset:site=tiles,most=1",
        "Signals are repeated with each retry of a wait.",
    ),
    Scenario(
        "dirty",
        "dirty:content=nan",
        "Nothing is read that this call hasn't written: there is no P0 to leave out.",
    ),
    Scenario(
        "unwritten, once",
        "unwritten:site=out_max,core=0,most=1",
        "Outputs are records: the writer reads them back.",
        (0,),
    ),
    Scenario(
        "unwritten, always",
        "unwritten:site=out_max,core=0,part=all",
        "Outputs are records: the writer reads them back, and gives up after max_retries.",
        (0,),
    ),
    Scenario(
        "crosstalk",
        "crosstalk:alignment=4",
        "The digest of a line that a neighbour has undone doesn't fit: it is written, or the call is launched, again; "
        "in some orders as often as that is allowed.",
    ),
    Scenario(
        "tail, floor",
        "tail:site=floor",
        "The program itself forgets the tail: every core does so, and proves what it has computed.",
    ),
    Scenario(
        "tail, padding",
        "tail:site=padding",
        "The program itself counts the padding, in every core alike.",
    ),
    Scenario(
        "flip, operand",
        "flip:site=w,bits=exponent",
        "All cores read the same operand, and the checksum is taken of it, too.",
    ),
    Scenario(
        "flip, product",
        "flip:site=product,core=1,bits=30-30,most=1",
        "Policy 1 stamps what it is given; the checksum of the weight finds the row, and a second core other bits.",
        (1,),
        beside=True,
    ),
    Scenario(
        "flip, product buffer",
        "flip:site=product,at=write,core=1,bits=30-30,most=1",
        "Each half of a product is a record: the cube reads it back, and writes it again.",
        (1,),
    ),
    Scenario(
        "dropped, product, once",
        "dropped:site=product,core=1,most=1",
        "The cube reads its half tile back, and writes it again.",
        (1,),
    ),
    Scenario(
        "dropped, product, always",
        "dropped:site=product,core=1",
        "The cube reads its half tile back, and gives up after max_retries.",
        (1,),
    ),
    Scenario(
        "torn, product",
        "torn:site=product,core=1,most=1",
        "The digest covers the whole half tile: the cube reads it back, and writes it again.",
        (1,),
    ),
    Scenario(
        "unwritten, product",
        "unwritten:site=product,core=1,most=1",
        "As a torn one: the cube reads it back, and writes it again.",
        (1,),
    ),
    Scenario(
        "stale, product, once",
        "stale:site=product,core=1,role=v0,most=1",
        "The digest doesn't fit what the vector unit takes: it is read again.",
        (1,),
    ),
    Scenario(
        "stale, product, always",
        "stale:site=product,core=1,age=9",
        "The digest doesn't fit, however often the half tile is read.",
        (1,),
    ),
    Scenario(
        "reordered, product",
        "reordered:site=product,core=1,most=1",
        "The vector unit finds a half tile that the stamp doesn't fit, and reads again until the words are there.",
        (1,),
    ),
    Scenario(
        "flip, statistics",
        "flip:site=statistics,core=1,bits=exponent,most=1",
        "Policy 1 stamps what it is given; policies 2 and 3 do own work twice, until two results agree.",
        (1,),
    ),
    Scenario(
        "flip, slot",
        "flip:site=sum,core=1,phase=P2,most=1",
        "After stamping: the digest doesn't fit.",
        (1,),
    ),
    Scenario(
        "flip, output",
        "flip:site=out_sum,at=end,most=1",
        "The host checks the outputs' stamps, and launches the call again.",
    ),
    Scenario(
        "scale",
        "scale:site=statistics,core=1,factor=1.5,elements=0,most=1",
        "As a flip of statistics: the magnitude is plausible, the bits aren't those of the second result.",
        (1,),
    ),
)
