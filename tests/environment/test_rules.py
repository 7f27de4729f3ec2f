"""Tests of steadysum.environment.rules: what the rules say of an environment, and mistakes in files of rules."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import pytest

from steadysum.environment.rules import RULES, Level, judge, packaged_rules, read_rules, rules_of
from steadysum.environment.vendor import Found
from steadysum.errors import RulesError

RULE = """\
[[rule]]
component = "torch"
range = "< 2.7"
symptom = "slow"
remedy = "update"
source = "us"
"""


def _components(**versions: str | None) -> dict[str, Found]:
    return {name.replace("_", "-"): Found(version, "") for name, version in versions.items()}


def _symptoms(**versions: str | None) -> list[str]:
    return [match.rule.symptom for match in judge(packaged_rules(), _components(**versions)).matches]


def test_the_rules_are_data_of_the_package() -> None:
    assert files("steadysum.environment").joinpath("rules.toml").is_file()
    assert len(packaged_rules()) >= 10


@pytest.mark.parametrize(
    ("component", "bad", "good"),
    [
        ("cann", ("5.1.RC1", "5.0.5"), ("5.1.RC2", "5.1", "8.5.0")),
        ("torch_npu", ("1.8.1", "1.10"), ("1.11.0", "2.7.1")),
    ],
)
def test_the_field_reports_gates_are_errors(component: str, bad: tuple[str, ...], good: tuple[str, ...]) -> None:
    for version in bad:
        assert judge(packaged_rules(), _components(**{component: version})).worst is Level.ERROR
    for version in good:
        assert judge(packaged_rules(), _components(**{component: version})).worst is not Level.ERROR


def test_chips_that_round_logits_are_known_by_their_name() -> None:
    rounding = next(rule for rule in packaged_rules() if "rounded to the 16-bit dtype" in rule.symptom)
    assert all(rounding.range.has(chip) for chip in ("910B1", "910B2C", "910B4-1", "910_9392"))
    assert not any(rounding.range.has(chip) for chip in ("910B", "910A", "950PR", "310P3"))


def test_the_name_of_the_vendors_operator_is_told_by_the_release() -> None:
    assert any("called npu_fused_linear_online_max_sum" in symptom for symptom in _symptoms(torch_npu="2.7.1"))
    assert any("called fused_linear_online_max_sum" in symptom for symptom in _symptoms(torch_npu="2.7.1.post2"))


def test_torchs_loss_in_bfloat16_is_warned_of_in_its_release_alone() -> None:
    assert any("linear_cross_entropy" in symptom for symptom in _symptoms(torch="2.13.0+cpu"))
    assert _symptoms(torch="2.12.1") == []


def test_mkls_first_call_is_warned_of_in_the_versions_that_have_it() -> None:
    assert "first call" in _symptoms(mkl="2024.2")[0]
    assert "first call" in _symptoms(mkl="2024.2.2")[0]
    assert _symptoms(mkl="2025.0") == []


def test_components_that_are_not_here_are_named_and_judged_by_no_rule() -> None:
    judgement = judge(packaged_rules(), _components(torch="2.6.0", cann=None))
    assert judgement.matches == ()
    assert judgement.checked == sum(rule.component == "torch" for rule in packaged_rules())
    assert "cann" in judgement.missing
    assert judgement.missing.count("torch-npu") == 1


def test_a_version_that_does_not_read_as_one_is_said_not_hidden() -> None:
    judgement = judge(packaged_rules(), _components(cann="unknown"))
    ((rule, seen),) = judgement.unread
    assert (rule.component, seen) == ("cann", "'unknown'")


def test_errors_come_first(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULE.replace("< 2.7", "*").replace('"us"', '"us"\nlevel = "error"'))
    matches = judge(rules_of([file]), _components(torch="2.13.0", mkl="2024.2")).matches
    assert [match.rule.level for match in matches] == [Level.ERROR, Level.WARNING, Level.WARNING]


def test_users_add_rules_by_file_and_by_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}.toml" for number in range(3)]
    for path in paths:
        path.write_text(RULE.replace('"us"', f'"{path.stem}"'))
    monkeypatch.setenv(RULES, os.pathsep.join(map(str, paths[:2])))
    assert [rule.source for rule in rules_of([paths[2]])[-3:]] == ["0", "1", "2"]
    assert len(judge(rules_of([paths[2]]), _components(torch="2.6.0")).matches) == 3


def test_a_rule_can_ask_for_several_components(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULE.replace('"us"', '"us"\nwith = {cann = ">= 8", "python:no-such-package" = "*"}'))
    (rule,) = read_rules(file)
    assert judge([rule], _components(torch="2.6", cann="8.5.0")).matches == ()
    file.write_text(RULE.replace('"us"', '"us"\nwith = {cann = ">= 8", "python:pytest" = ">= 1"}'))
    (rule,) = read_rules(file)
    assert len(judge([rule], _components(torch="2.6", cann="8.5.0")).matches) == 1
    assert judge([rule], _components(torch="2.6", cann="7.0")).matches == ()


def test_any_python_package_can_have_a_rule(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULE.replace('"torch"', '"python:pytest"').replace("< 2.7", ">= 1"))
    (match,) = judge(read_rules(file), {}).matches
    assert match.version == pytest.__version__


@pytest.mark.parametrize(
    ("before", "after", "what", "seen", "remedy"),
    [
        ('"< 2.7"', '"2.7"', "version rule in {file}, line 8", "range '2.7'", "'2.7' isn't such a condition."),
        (
            '"torch"',
            '"tocrh"',
            "version rule in {file}, line 8",
            "component 'tocrh'",
            "The nearest known name is torch.",
        ),
        ('source = "us"', "", "version rule in {file}, line 8", "no source", "Write it."),
        ('"us"', "7", "version rule in {file}, line 8", "source = 7", "Correct it."),
        (
            "symptom",
            "symtom",
            "version rule in {file}, line 8",
            "the key 'symtom'",
            "The nearest known name is symptom.",
        ),
        ('"us"', '"us"\nlevel = "fatal"', "version rule in {file}, line 8", "level = 'fatal'", "Correct it."),
        ('"us"', '"us"\nwith = "cann"', "version rule in {file}, line 8", "with = 'cann'", "Correct it."),
        (
            '"slow"',
            '"slow',
            "version rules {file}, line 11",
            "Illegal character '\\n' (at line 11, column",
            "Correct the",
        ),
        ("[[rule]]", "[rules]", "version rules {file}", "the key 'rules'", "Begin each rule with a line [[rule]]."),
    ],
)
def test_a_malformed_rule_is_refused_with_its_file_and_line(
    tmp_path: Path, before: str, after: str, what: str, seen: str, remedy: str
) -> None:
    file = tmp_path / "mine.toml"
    good = f"# Mine.\n{RULE}"
    file.write_text(good + RULE.replace(before, after))
    with pytest.raises(RulesError) as caught:
        read_rules(file)
    assert caught.value.what == what.format(file=file)
    assert seen in caught.value.seen
    assert remedy in caught.value.remedy


def test_a_missing_file_of_rules_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match=r"version rules .*none.toml: got No such file or directory"):
        rules_of([tmp_path / "none.toml"])


def test_an_entry_is_numbered_where_lines_do_not_tell(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULE.replace('"slow"', '"""\n[[rule]]\n"""') + RULE.replace("< 2.7", "2.7"))
    with pytest.raises(RulesError, match=r"mine\.toml, rule 2: got"):
        read_rules(file)
