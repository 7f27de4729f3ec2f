"""Files of many processes as one: a collector that reads them anew each time, for an exporter beside the runs.

What can't be read is left out, and shown as `steadysum_metrics_file_readable 0`: one bad file must not take the others'
figures away. Not here: one file (metrics_file.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from steadysum.errors import MetricsFileError, MetricsFileNotFoundError
from steadysum.monitor.extra import core
from steadysum.monitor.metrics_file import SUFFIX, identity_of, read_metrics

__all__ = ["Contents", "MetricsFiles"]


class Contents(NamedTuple):
    """What was found in one file."""

    path: Path
    families: list[core.Metric]  # empty where it can't be used
    error: MetricsFileError | MetricsFileNotFoundError | None  # why


class MetricsFiles:
    """The metrics in some files, and in those of some folders that end in `.prom`, as they are when asked for.

    Args:
        sources: files and folders. A folder's files may come and go.

    Raises:
        MetricsFileNotFoundError: one isn't there.
        MetricsFileError: a file that was named can't be used.
    """

    def __init__(self, sources: Sequence[str | os.PathLike[str]]) -> None:
        self._sources = tuple(Path(source) for source in sources)
        named = {source for source in self._sources if not source.is_dir()}
        for contents in self.read():
            if contents.error is not None and contents.path in named:
                raise contents.error

    def read(self) -> list[Contents]:
        """All files, as they are now; of two that can't be told apart, the second is an error."""
        found: list[Contents] = []
        seen: dict[tuple[tuple[str, str], ...], Path] = {}
        for path in self._paths():
            try:
                families = read_metrics(path)
                identity = tuple(identity_of(families).items())
                if identity in seen:
                    raise _same(path, seen[identity], identity)
                seen[identity] = path
                found.append(Contents(path, families, None))
            except (MetricsFileError, MetricsFileNotFoundError) as error:
                found.append(Contents(path, [], error))
        return found

    def collect(self) -> Iterator[core.Metric]:
        """All families, with every file's series, as a collector of prometheus_client."""
        merged: dict[str, core.Metric] = {}
        readable = core.GaugeMetricFamily(
            "steadysum_metrics_file_readable", "1 where a metrics file could be read, else 0.", labels=["file"]
        )
        for contents in self.read():
            readable.add_metric([str(contents.path)], float(contents.error is None))
            for family in contents.families:
                merged.setdefault(family.name, family)
                if merged[family.name] is not family:
                    merged[family.name].samples.extend(family.samples)
        yield from merged.values()
        yield readable

    def _paths(self) -> list[Path]:
        """Each once, in the order of the sources; a folder's by name."""
        paths: dict[Path, None] = {}
        for source in self._sources:
            paths.update(dict.fromkeys(sorted(source.glob(f"*{SUFFIX}")) if source.is_dir() else [source]))
        return list(paths)


def _same(path: Path, other: Path, identity: tuple[tuple[str, str], ...]) -> MetricsFileError:
    labels = ", ".join(f"{name}={value}" for name, value in identity)
    return MetricsFileError(
        f"metrics file {path}",
        seen=f"the labels {labels}, which {other} has, too",
        allowed="files of different processes",
        remedy="Give the processes labels that tell them apart: steadysum.monitor.start(labels=...).",
    )
