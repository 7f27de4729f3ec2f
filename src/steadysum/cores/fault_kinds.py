"""The kinds of faults, as data: what each does, where it can be armed, and its knobs.

docs/faults.md lists what is here (tests/cores/test_faults_document.py holds it to that). Not here: how one is armed
(arm.py), and what it does to a machine (faults.py).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

__all__ = ["BIT_RANGES", "KINDS", "OUTPUTS", "Kind", "Knob", "Value"]

Value = int | float | str | bool


class Knob(NamedTuple):
    """What can be set about a kind. Its type is its default's."""

    default: Value
    meaning: str
    low: float = 0.0  # of a number
    high: float = math.inf
    choices: tuple[str, ...] = ()  # of a word; (): any


class Kind(NamedTuple):
    """A kind of fault."""

    sentence: str
    sites: str  # what `site` may name
    without: str  # where it acts if no site is given
    knobs: dict[str, Knob]
    fixed_sites: tuple[str, ...] = ()  # all that `site` may be; (): any name that the programs use
    takes_site: bool = True


BIT_RANGES: Final = ("any", "sign", "exponent", "mantissa")
# The regions that the host reads after a call.
OUTPUTS: Final = ("out_max", "out_sum", "out_predicted", "mask", "masked_target")

_AT = Knob(
    "auto",
    "when: work (the result of a unit's own work), write (a word on its way to memory), begin (operands x and w), "
    "end (in memory after the last step); auto: work for a label, begin for x and w, else write",
    choices=("auto", "work", "write", "begin", "end"),
)
_REGION = "a region, or elements of it: `max`, `max[128:192]`"

KINDS: Final[dict[str, Kind]] = {
    "delay": Kind(
        "A unit is late at a sync point.",
        "a barrier or a flag (its signal as well as its wait)",
        "every barrier and every wait",
        {
            "distribution": Knob("fixed", "of the delay", choices=("fixed", "lognormal", "exponential")),
            "microseconds": Knob(
                2.5e6,
                "the delay; of lognormal the median, of exponential the mean. The default outlasts a wait of 2000 ms",
            ),
            "sigma": Knob(1.0, "standard deviation of the logarithm, of lognormal"),
        },
    ),
    "stale": Kind(
        "A reader sees what its slot held when an earlier call ended.",
        _REGION,
        "every read",
        {"age": Knob(1, "how many calls earlier", low=1)},
    ),
    "dropped": Kind(
        "What a unit writes, or adds, never reaches memory.",
        _REGION,
        "every write and every add",
        {},
    ),
    "duplicated": Kind(
        "A contribution is counted twice.",
        "the region of an atomic add, or `tile`: a tile is merged twice, as by a retry",
        "every add and every tile",
        {},
    ),
    "torn": Kind(
        "A record is part new, part old: the rest of its bytes never reaches memory.",
        _REGION,
        "every write",
        {
            "position": Knob(-1, "the byte of the record at which it is cut; -1: the middle", low=-1),
            "new": Knob("first", "which part reaches memory", choices=("first", "last")),
        },
    ),
    "reordered": Kind(
        "A flag is seen before the data that it announces: words stay in the store buffer, no fence waits for them.",
        _REGION,
        "every write",
        {
            "microseconds": Knob(1000.0, "how much longer the words stay in the store buffer, on the virtual clock"),
            "own": Knob(False, "the unit's own reads don't see the words either"),
        },
    ),
    "overrun": Kind(
        "A unit goes on before what it waits for: a buffer is overwritten while it is read, or a barrier is none.",
        "a flag or a barrier",
        "the flag `buffer free` and the barrier `exit`",
        {"lead": Knob(1, "how many of the unit's waits in a row end too early", low=1)},
    ),
    "reset": Kind(
        "A reset right after a signal wipes flags of the same name.",
        "a barrier or a flag",
        "every signal",
        {
            "batch": Knob(0, "the signal's value, from 1: the call of a barrier, the tile of a flag; 0: any"),
            "whose": Knob(
                "others", "others: early arrivals of the others; own: the signal itself", choices=("others", "own")
            ),
        },
    ),
    "dirty": Kind(
        "The workspace isn't cleared: P0 is left out.",
        "a region that gets the content",
        "max, sum, target_logit, stamp and predicted",
        {
            "content": Knob(
                "earlier",
                "what it holds: earlier (what earlier calls left there), nan, pattern (bytes 0xA5)",
                choices=("earlier", "nan", "pattern"),
            )
        },
    ),
    "unwritten": Kind(
        "Part of the output is never written.",
        _REGION,
        "the outputs: " + ", ".join(OUTPUTS),
        {
            "part": Knob("rows", "rows (drawn ones), tail (the last ones), all", choices=("rows", "tail", "all")),
            "count": Knob(1, "how many elements of each write, of rows and tail", low=1),
        },
    ),
    "crosstalk": Kind(
        "Two cores write into one 64-byte line, and undo each other's words.",
        "`layout`",
        "the layout of a call's memory",
        {"alignment": Knob(4, "bytes to which slots are aligned in place of 64", low=4, high=64)},
        fixed_sites=("layout",),
    ),
    "tail": Kind(
        "The tail of a shape that tiles don't divide is treated wrong.",
        "`floor` (floor in place of ceiling division: the tail is forgotten), `padding` (its padding is counted)",
        "both",
        {
            "content": Knob(
                "zeros",
                "what the padding holds: zeros, or nan (memory that nobody has written)",
                choices=("zeros", "nan"),
            )
        },
        fixed_sites=("floor", "padding"),
    ),
    "flip": Kind(
        "Bits flip in operands, work, partials or outputs.",
        "a label of work (product, statistics, merge, combine, target), x, w, or " + _REGION,
        "every piece of work",
        {
            "bits": Knob(
                "any", "which bits: any, sign, exponent, mantissa, or a range such as 20-30, of those that a number has"
            ),
            "count": Knob(1, "bits of each element", low=1, high=64),
            "elements": Knob(1, "elements", low=1),
            "at": _AT,
        },
    ),
    "scale": Kind(
        "Values are multiplied: a plausible magnitude, no NaN.",
        "as flip",
        "every piece of work",
        {
            "factor": Knob(1.5, "the factor", low=-math.inf),
            "elements": Knob(1, "elements; 0: all of an array"),
            "at": _AT,
        },
    ),
    "dead": Kind(
        "A core, or one unit of it, stops; from then on it is dead in all calls that the arm covers, or it comes back.",
        "",
        "a unit at the beginning of a phase, of each phase if none is given",
        {
            "after": Knob(0, "how many of its actions in the phase the unit does before"),
            "comes_back": Knob(0.0, "microseconds after which it goes on as if nothing had been; 0: never"),
        },
        takes_site=False,
    ),
    "slow": Kind(
        "A core, or one unit of it, is slower than the others, for ever.",
        "",
        "all of a unit's actions",
        {"factor": Knob(10.0, "of all of its times", low=1.0)},
        takes_site=False,
    ),
}
