"""What comes with the package for Prometheus and Grafana: alert rules, their tests, a dashboard. Not here: metrics."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from steadysum.errors import OptionError
from steadysum.trace.files import write_whole

__all__ = ["PACKAGED", "alert_rules", "dashboard", "save_packaged"]

PACKAGED: Final = (
    "rules/steadysum.rules.yml",
    "rules/steadysum.rules.test.yml",
    "dashboard/steadysum.json",
)


def alert_rules() -> str:
    """The alert rules, in the form of Prometheus's rule_files.

    >>> "alert: SteadysumCallFailed" in alert_rules()
    True
    """
    return _text(PACKAGED[0])


def dashboard() -> str:
    """The dashboard, in Grafana's JSON.

    >>> import json
    >>> json.loads(dashboard())["title"]
    'steadysum'
    """
    return _text(PACKAGED[2])


def save_packaged(folder: Path) -> list[Path]:
    """Write the alert rules, their tests and the dashboard to a folder.

    Args:
        folder: it is made if it isn't there.

    Returns:
        The files.

    Raises:
        OptionError: a file of such a name is there and says something else: thresholds of the user's own, perhaps.
        OSError: the folder can't be made, or written to.
    """
    texts = {folder / Path(name).name: _text(name) for name in PACKAGED}
    for path, text in texts.items():
        if path.is_file() and path.read_bytes() != text.encode():
            raise OptionError(
                "FOLDER",
                seen=f"{path}, which differs from this version's",
                allowed="a folder without files of these names",
                remedy="Choose another folder and compare the two, or move the file away.",
            )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_whole(path, text)
    return list(texts)


def _text(name: str) -> str:
    return files("steadysum.monitor").joinpath(name).read_text(encoding="utf-8")
