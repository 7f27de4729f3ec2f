"""What a PromQL expression names: metrics, each with the labels that its own matchers name. No full parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prometheus_client import parser

from steadysum.monitor.metrics import Metrics
from steadysum.notices import KINDS, Notice

_STRING = r'"(?:[^"\\]|\\.)*"'
_NAME = r"[a-zA-Z_:][\w:]*"
_KEYWORDS = frozenset(
    {
        "and",
        "or",
        "unless",
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "group_right",
        "offset",
        "bool",
        "inf",
        "nan",
    }
)
# What Prometheus adds to every series that it scrapes.
SCRAPED = frozenset({"instance", "job"})


def names_in(expression: str) -> Iterator[tuple[str, frozenset[str]]]:
    """(metric, labels of its matchers) for each metric that an expression names.

    Labels in `by (...)` and its like come with the metric `None`, in one pair at the end.
    """
    text = re.sub(r"#.*", "", expression)
    grouped: set[str] = set()

    def group(match: re.Match[str]) -> str:
        grouped.update(re.findall(_NAME, match.group(1)))
        return " "

    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", group, text)
    text = re.sub(r"\[[^\]]*\]|\boffset\s+\w+", " ", text)
    for match in re.finditer(rf"({_NAME})\s*(\(|\{{((?:[^}}\"]|{_STRING})*)\}})?", re.sub(r"\b\d[\w.]*", " ", text)):
        name, after, matchers = match.groups()
        if after == "(" or name in _KEYWORDS:
            continue
        labels = re.findall(rf"({_NAME})\s*(?:=~|!~|!=|=)", re.sub(_STRING, "", matchers or ""))
        yield name, frozenset(labels)
    yield "", frozenset(grouped)


def existing() -> dict[str, frozenset[str]]:
    """Every series that steadysum.monitor has, with its labels."""
    metrics = Metrics({"run": "train", "rank": "0", "pid": "7"}, "0.1.0")
    for kind, labels in KINDS.items():
        metrics.hear(Notice(kind, {label: "written" if label == "outcome" else "x" for label in labels}, 1.0))
    found: dict[str, frozenset[str]] = {"steadysum_metrics_file_readable": frozenset({"file"})}
    for family in parser.text_string_to_metric_families(metrics.text()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, frozenset()) | frozenset(sample.labels)
    return found


def strangers(expression: str, known: dict[str, frozenset[str]]) -> list[str]:
    """What an expression names that there isn't; empty: all of it exists."""
    wrong: list[str] = []
    labels: set[str] = set(SCRAPED)
    pairs: list[Any] = list(names_in(expression))
    for name, matched in pairs[:-1]:
        if name not in known:
            wrong.append(name)
            continue
        labels |= known[name]
        wrong += [f"{name}{{{label}}}" for label in matched - known[name] - SCRAPED]
    return wrong + sorted(pairs[-1][1] - labels)
