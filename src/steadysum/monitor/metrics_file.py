"""The metrics file: what a process last wrote of its metrics; whole even if it was killed while it wrote.

The text is Prometheus's own, so that node_exporter's textfile collector takes it, too; comments at its begin and end
say what it is, and that it is all there. Not here: when it is written (process.py), files of several processes
(files.py).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from steadysum.errors import MetricsFileError, MetricsFileNotFoundError
from steadysum.monitor.extra import core, parser
from steadysum.monitor.labels import IDENTITY
from steadysum.trace.files import write_whole

__all__ = ["SUFFIX", "identity_of", "parse_metrics", "path_in", "read_metrics", "refuse_other_file", "write_metrics"]

SUFFIX: Final = ".prom"  # what node_exporter looks for
_BEGIN: Final = "# steadysum metrics 1\n"
_END: Final = "# EOF\n"
_PREFIX: Final = "steadysum_"
_RUNNING: Final = "steadysum_monitor_running"


def path_in(folder: Path, labels: Mapping[str, str]) -> Path:
    """The file of a process in a folder of many: named for the run, rank, machine and pid.

    >>> path_in(Path("metrics"), {"run": "a/b", "rank": "3", "pid": "17"}).name.split("@")[0]
    'a_b.rank3'
    """
    run = re.sub(r"[^\w.-]", "_", labels["run"])
    return folder / f"{run}.rank{labels['rank']}@{socket.gethostname()}.{labels['pid']}{SUFFIX}"


def write_metrics(path: Path, text: str) -> None:
    """Writes metrics to a temporary name beside `path`, and renames.

    Raises:
        OSError: the folder isn't there, can't be written to, or is full.
    """
    write_whole(path, _BEGIN + text + _END)


def refuse_other_file(path: Path) -> None:
    """Refuses to replace a file that isn't a run's metrics.

    Raises:
        MetricsFileError: it is something else.
    """
    if path.exists() and not _begins_well(path):
        raise MetricsFileError(
            f"metrics file {path}",
            seen="a file that isn't a run's metrics",
            allowed="a new name, or the metrics of an earlier run",
            remedy="It would be replaced. Choose another name, or a folder.",
        )


def read_metrics(path: str | os.PathLike[str]) -> list[core.Metric]:
    """Read the metrics that a process has written.

    Args:
        path: of the file.

    Returns:
        Its families, as prometheus_client has them.

    Raises:
        MetricsFileNotFoundError: there is none.
        MetricsFileError: it can't be read, isn't a run's metrics, or isn't whole.

    >>> import tempfile
    >>> from steadysum.monitor.metrics import Metrics
    >>> path = Path(tempfile.mkdtemp()) / "run.prom"
    >>> write_metrics(path, Metrics({"run": "train", "rank": "0", "pid": "1"}, "0.1.0").text())
    >>> identity_of(read_metrics(path))
    {'pid': '1', 'rank': '0', 'run': 'train'}
    """
    path = Path(path)
    try:
        if not _begins_well(path):
            raise _refusal(path, "a file that doesn't begin as metrics of steadysum do")
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise MetricsFileNotFoundError(
            f"metrics file {path}",
            seen="no such file",
            allowed="a file that a monitored run has written",
            remedy='steadysum.monitor.start(file="run.prom") in the run writes one.',
        ) from None
    except UnicodeDecodeError as error:
        raise _refusal(path, f"bytes that aren't text, at {error.start}") from None
    except OSError as error:
        raise _refusal(path, error.strerror or str(error)) from None
    if not text.endswith("\n" + _END):
        raise _refusal(path, f"a file without the last line {_END.strip()!r}: it isn't whole")
    return parse_metrics(text, str(path))


def parse_metrics(text: str, where: str) -> list[core.Metric]:
    """The families in a text, which must be steadysum's; others, of the process's own, are left out.

    Raises:
        MetricsFileError: it isn't Prometheus's format, or has no metrics of steadysum's.
    """
    try:
        families = [family for family in parser.text_string_to_metric_families(text) if family.name.startswith(_PREFIX)]
    except (ValueError, IndexError, KeyError) as error:  # all three come from the parser, for different mistakes
        raise _refusal(where, f"text that isn't in Prometheus's format ({error})") from None
    identity_of(families, where)
    return families


def identity_of(families: list[core.Metric], where: str = "metrics") -> dict[str, str]:
    """The labels of the process whose metrics they are; of the first one, where there are several.

    Raises:
        MetricsFileError: there are none.
    """
    for family in families:
        if family.name == _RUNNING and family.samples and set(IDENTITY) <= family.samples[0].labels.keys():
            return dict(sorted(family.samples[0].labels.items()))
    raise _refusal(where, f"no {_RUNNING} with the labels {', '.join(IDENTITY)}")


def _begins_well(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_BEGIN)) == _BEGIN.encode()


def _refusal(where: object, seen: str) -> MetricsFileError:
    return MetricsFileError(
        f"metrics file {where}",
        seen,
        "a whole file that a monitored run has written",
        "Name the file that steadysum.monitor.start(file=...) was given.",
    )
