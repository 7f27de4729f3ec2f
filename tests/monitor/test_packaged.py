"""The alert rules and the dashboard name what exists, and promtool checks the rules and runs their tests."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from steadysum.errors import OptionError
from steadysum.monitor.packaged import PACKAGED, alert_rules, dashboard, save_packaged

from .promql import existing, names_in, strangers

Promtool = Callable[..., "subprocess.CompletedProcess[str]"]
KNOWN = existing()
RULES = {rule["alert"]: rule for group in yaml.safe_load(alert_rules())["groups"] for rule in group["rules"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_packaged(tmp_path)
    return tmp_path


# ---- the alert rules -----------------------------------------------------------------------------------------------


def test_promtool_checks_the_rules(promtool: Promtool, folder: Path) -> None:
    found = promtool("check", "rules", str(folder / "steadysum.rules.yml"))
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"SUCCESS: {len(RULES)} rules found" in found.stdout


def test_promtool_runs_the_tests_of_the_rules(promtool: Promtool, folder: Path) -> None:
    found = promtool("test", "rules", str(folder / "steadysum.rules.test.yml"))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "SUCCESS" in found.stdout


@pytest.mark.parametrize("alert", RULES)
def test_the_tests_of_the_rules_notice_an_alert_that_never_fires(promtool: Promtool, folder: Path, alert: str) -> None:
    assert _with(folder, alert, "vector(1) > 2", promtool).returncode != 0


@pytest.mark.parametrize("alert", RULES)
def test_the_tests_of_the_rules_notice_an_alert_that_fires_without_reason(
    promtool: Promtool, folder: Path, alert: str
) -> None:
    """Any comparison with a threshold is made true for every series of 0 and more."""
    expression = RULES[alert]["expr"]
    thresholds = list(re.finditer(r"(>|==|<=) \d[\d.]*(?=\)?\s*(?:$|\n|or|and|unless))", expression))
    assert thresholds
    for match in thresholds:
        spoilt = expression[: match.start()] + ">= 0" + expression[match.end() :]
        found = _with(folder, alert, spoilt, promtool)
        assert found.returncode != 0, f"nobody notices {spoilt}"


def _with(folder: Path, alert: str, expression: str, promtool: Promtool) -> subprocess.CompletedProcess[str]:
    document = yaml.safe_load(alert_rules())
    for group in document["groups"]:
        for rule in group["rules"]:
            if rule["alert"] == alert:
                rule["expr"] = expression
    (folder / "steadysum.rules.yml").write_text(yaml.safe_dump(document))
    tests = yaml.safe_load((folder / "steadysum.rules.test.yml").read_text())
    tests["tests"] = [test for test in tests["tests"] if alert in str(test)]  # the others take time, and say the same
    (folder / "steadysum.rules.test.yml").write_text(yaml.safe_dump(tests))
    assert promtool("check", "rules", str(folder / "steadysum.rules.yml")).returncode == 0
    return promtool("test", "rules", str(folder / "steadysum.rules.test.yml"))


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_names_metrics_and_labels_that_exist(alert: str) -> None:
    rule = RULES[alert]
    assert strangers(rule["expr"], KNOWN) == []
    metrics = [name for name, _ in names_in(rule["expr"]) if name]
    assert metrics
    labels = set.intersection(*(set(KNOWN[name]) for name in metrics))
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}


# ---- the dashboard -------------------------------------------------------------------------------------------------


def _expressions(part: Any) -> Iterator[str]:
    """All PromQL in a dashboard, wherever it stands."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "expr":
                yield value
            yield from _expressions(value)
    elif isinstance(part, list):
        for value in part:
            yield from _expressions(value)


DASHBOARD = json.loads(dashboard())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_the_dashboard_only_uses_metrics_and_labels_that_exist() -> None:
    known = {**KNOWN, "ALERTS": frozenset({"alertname", "alertstate"})}  # Prometheus's own, of its alerts
    expressions = list(_expressions(DASHBOARD))
    assert len(expressions) > len(PANELS)
    for expression in expressions:
        assert strangers(expression, known) == [], expression


def test_the_dashboards_legends_and_variables_name_labels_that_exist() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            known = set().union(*(KNOWN[name] for name, _ in names_in(target["expr"]) if name))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known
    variables = DASHBOARD["templating"]["list"]
    for variable in variables[1:]:
        metric, label = re.fullmatch(r"label_values\((\w+).*, (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
        assert label in KNOWN[metric]
    used = set(re.findall(r"\$\{?(\w+)", " ".join(_expressions(DASHBOARD)))) - {"__range", "__rate_interval"}
    assert used <= {variable["name"] for variable in variables}


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for expression in _expressions(DASHBOARD) for name, _ in names_in(expression)}
    families = {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in KNOWN}
    missing = families - {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in shown}
    assert missing == set()


def test_prometheus_can_parse_every_expression_of_the_dashboard(promtool: Promtool, tmp_path: Path) -> None:
    variables = {"$__range": "3h", "$__rate_interval": "1m", "$run": ".*", "$rank": ".*"}
    rules = []
    for number, expression in enumerate(_expressions(DASHBOARD)):
        for variable, value in variables.items():
            expression = expression.replace(variable, value)
        rules.append({"record": f"steadysum:panel:{number}", "expr": expression})
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    found = promtool("check", "rules", str(path))
    assert found.returncode == 0, found.stdout + found.stderr


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24  # Grafana's width
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        taken |= cells


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum(rate(steadysum_call_total[5m]))", ["steadysum_call_total"]),
        ('steadysum_calls_total{outcom="raised"} > 0', ["steadysum_calls_total{outcom}"]),
        ("sum by (operator, pont) (steadysum_calls_total)", ["pont"]),
        ('up{job="x"} == 1', ["up"]),
        ('steadysum_calls_total{operator="a or b{c}"} offset 5m > 1e3', []),
    ],
)
def test_what_does_not_exist_is_found(expression: str, wrong: list[str]) -> None:
    assert strangers(expression, KNOWN) == wrong


# ---- saving --------------------------------------------------------------------------------------------------------


def test_all_files_are_saved_as_they_are_packaged(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(Path(name).name for name in PACKAGED)
    for name in PACKAGED:
        assert (folder / Path(name).name).read_text() == files("steadysum.monitor").joinpath(name).read_text()
    save_packaged(folder)  # again: the same


def test_rules_that_the_user_has_changed_are_not_overwritten(folder: Path) -> None:
    rules = folder / "steadysum.rules.yml"
    rules.write_text("groups: []\n")
    with pytest.raises(OptionError, match=r"steadysum\.rules\.yml, which differs.*move the file away"):
        save_packaged(folder)
    assert rules.read_text() == "groups: []\n"
