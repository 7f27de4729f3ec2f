"""Labels that tell one process's metrics from another's. Not here: the labels of single metrics (metrics.py).

Every process has three: `run`, what it works on; `rank`, which of the run's processes it is; `pid`, so that a run that
is started again, or twice, isn't taken for the first. Prometheus adds its own `instance` and `job` where it scrapes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from steadysum.errors import OperandTypeError, RangeError
from steadysum.notices import KINDS

__all__ = ["IDENTITY", "RESERVED", "RUN_VARIABLE", "checked_labels", "process_labels"]

IDENTITY: Final = ("run", "rank", "pid")  # every process has them
RUN_VARIABLE: Final = "STEADYSUM_RUN"
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")  # Prometheus's own rule for names of labels
# Labels that metrics have by themselves: a histogram's bound, a summary's quantile, a run's file, and those of notices.
# Prometheus itself gives job and instance, and would rename ours.
RESERVED: Final = frozenset(
    {
        "le",
        "quantile",
        "file",
        "version",
        "torch",
        "job",
        "instance",
        *(name for kind in KINDS.values() for name in kind),
    }
)


def process_labels() -> dict[str, str]:
    """What this process is called, unless its user says otherwise.

    Returns:
        run: $STEADYSUM_RUN, else the id that torchrun was given, else the name of the script; rank: $RANK, which
        torchrun and its peers set, else 0; pid.

    >>> list(process_labels())
    ['run', 'rank', 'pid']
    """
    return {"run": _run(), "rank": os.environ.get("RANK") or "0", "pid": str(os.getpid())}


def _run() -> str:
    named, torchrun = os.environ.get(RUN_VARIABLE), os.environ.get("TORCHELASTIC_RUN_ID")
    if named:
        return named
    if torchrun and torchrun != "none":  # what torchrun calls a run that was given no --rdzv-id
        return torchrun
    script = Path(sys.argv[0] if sys.argv else "").stem
    return "python" if script in ("", "-", "-c", "-m") else script  # these are what Python says where there is none


def checked_labels(labels: Mapping[str, str | int]) -> dict[str, str]:
    """Some labels as text.

    Raises:
        RangeError: a name that Prometheus doesn't take, or that a metric has by itself; an empty value, which to
            Prometheus is no label at all.
        OperandTypeError: a value that is neither text nor a whole number.

    >>> checked_labels({"team": "pretrain", "rank": 3})
    {'team': 'pretrain', 'rank': '3'}
    """
    return {_checked_name(name): _checked_value(name, value) for name, value in labels.items()}


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("__") or name in RESERVED:
        raise RangeError(
            "labels",
            seen=f"a label {name!r}",
            allowed=f"letters, digits and _, with no digit first and no __; not {', '.join(sorted(RESERVED))}",
            remedy='For example {"team": "pretrain", "rank": 0}.',
        )
    return name


def _checked_value(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise OperandTypeError(
            f"label {name}", repr(value), "a string or an int", "Values that change belong into metrics."
        )
    if value == "":
        raise RangeError(f"label {name}", "''", "a value", "Leave the label out if there is none.")
    return str(value)
