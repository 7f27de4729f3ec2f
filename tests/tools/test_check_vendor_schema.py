"""Tests of tools/check_vendor_schema.py, with small made-up wheels: what it accepts, what it names, and how it ends."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

PATH = Path(__file__).parents[2] / "tools" / "check_vendor_schema.py"
ONLINE, LOSS, BACKWARD = (
    "npu_fused_linear_online_max_sum",
    "npu_fused_cross_entropy_loss_with_max_sum",
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
)


@pytest.fixture(scope="module")
def tool() -> Any:
    """The tool as a module: it lies outside of the package."""
    spec = importlib.util.spec_from_file_location("check_vendor_schema", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheel(tool: Any, tmp_path: Path) -> Callable[..., Path]:
    """Makes a wheel that holds the schemas, changed: wheel(npu_...="(...) -> ..."), None for one that is left out."""

    def make(**changes: str | None) -> Path:
        schemas = {name: text for name, text in {**tool.EXPECTED, **changes}.items() if text is not None}
        # Both forms that the vendor's file has: the name in the item's first line, or in a later one.
        lines = ["backend: NPU", "custom:", "- exposed: true", "  func: npu_another(Tensor a) -> Tensor"]
        lines += [f"- func: {name}{text}\n  impl_ns: op_api" for name, text in schemas.items()]
        path = tmp_path / "torch_npu-0.0.made.up-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(tool.SCHEMAS, "\n".join(lines) + "\n")
        return path

    return make


@pytest.fixture
def check(tool: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the tool on a wheel: its exit code, and all that it printed. Our schemas are the expected ones, changed."""

    def run(wheel: Path, **ours: str | None) -> tuple[int, str]:
        def own(name: str) -> Any:
            text = {**tool.EXPECTED, **ours}[name]
            return None if text is None else tool.parse(name, text)

        code = tool.main(["--wheel", str(wheel)], own)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_equal_schemas_agree(wheel: Callable[..., Path], check: Callable[..., tuple[int, str]]) -> None:
    code, said = check(wheel())
    assert (code, said) == (
        0,
        "torch_npu-0.0.made.up-py3-none-any.whl: the schemas of all 3 operators agree with ours\n",
    )


def test_ours_may_have_more_keyword_only_arguments_with_defaults(
    tool: Any, wheel: Callable[..., Path], check: Callable[..., tuple[int, str]]
) -> None:
    extended = tool.EXPECTED[ONLINE].replace("return_logits=False", "return_logits=False, *, bool round_logits=False")
    assert check(wheel(), **{ONLINE: extended})[0] == 0


CHANGED = [
    ("Tensor target,", "Tensor? target,", "argument 3 is Optional[Tensor] target, not Tensor target"),
    ("int vocab_end_index", "float vocab_end_index", "argument 5 is float vocab_end_index, not int vocab_end_index"),
    ("int vocab_end_index", "int vocab_end", "argument 5 is int vocab_end, not int vocab_end_index"),
    (
        "return_logits=False",
        "return_logits=True",
        "argument 6 is bool return_logits=True, not bool return_logits=False",
    ),
    ("return_logits=False", "return_logits", "argument 6 is bool return_logits, not bool return_logits=False"),
    ("bool return_logits", "*, bool return_logits", "argument 6 is bool return_logits=False (keyword only), not"),
    (", bool return_logits=False", "", "argument 6 is missing, not bool return_logits=False"),
    ("return_logits=False", "return_logits=False, int mode=0", "one more argument, int mode=0"),
    ("return_logits=False", "return_logits=False, *, int mode", "one more argument, int mode (keyword only)"),
    ("-> (Tensor, ", "-> (", "5 results, not 6"),
    ("Tensor, Tensor)", "Tensor, int)", "results are (Tensor, Tensor, Tensor, Tensor, Tensor, int), not (Tensor, Ten"),
    ("Tensor, Tensor)", "Tensor, Tensor?)", "results are (Tensor, Tensor, Tensor, Tensor, Tensor, Optional[Tensor])"),
]


@pytest.mark.parametrize(("old", "new", "difference"), CHANGED)
def test_a_change_in_our_schema_is_named(
    old: str, new: str, difference: str, tool: Any, wheel: Callable[..., Path], check: Callable[..., tuple[int, str]]
) -> None:
    assert old in tool.EXPECTED[ONLINE]
    code, said = check(wheel(), **{ONLINE: tool.EXPECTED[ONLINE].replace(old, new)})
    assert code == 1
    assert said.startswith(f"differs: {ONLINE}, ours against the wheel: {difference}")
    assert said.count("\n") == 1


def test_a_change_in_the_wheel_is_named_against_what_we_expect_and_against_ours(
    tool: Any, wheel: Callable[..., Path], check: Callable[..., tuple[int, str]]
) -> None:
    changed = tool.EXPECTED[LOSS].replace("float? label_smoothing=0.0", "float label_smoothing=0.1")
    code, said = check(wheel(**{LOSS: changed}))
    assert code == 1
    assert said.splitlines() == [
        f"differs: {LOSS}, the wheel against what we expect: argument 4 is "
        "float label_smoothing=0.1 (keyword only), not Optional[float] label_smoothing=0.0 (keyword only)",
        f"differs: {LOSS}, ours against the wheel: argument 4 is "
        "Optional[float] label_smoothing=0.0 (keyword only), not float label_smoothing=0.1 (keyword only)",
    ]


def test_one_more_keyword_argument_in_the_wheel_is_a_difference(
    tool: Any, wheel: Callable[..., Path], check: Callable[..., tuple[int, str]]
) -> None:
    changed = tool.EXPECTED[LOSS].replace("vocab_parallel_logits=None", "vocab_parallel_logits=None, int mode=0")
    code, said = check(wheel(**{LOSS: changed}))
    assert code == 1
    assert "the wheel against what we expect: one more argument, int mode=0 (keyword only)" in said
    assert "ours against the wheel: argument 8 is missing, not int mode=0 (keyword only)" in said


def test_an_operator_that_is_missing_is_named(
    wheel: Callable[..., Path], check: Callable[..., tuple[int, str]]
) -> None:
    assert check(wheel(**{BACKWARD: None})) == (1, f"differs: {BACKWARD}: not in the wheel\n")
    assert check(wheel(), **{BACKWARD: None}) == (
        1,
        f"differs: {BACKWARD}: steadysum registers no operator of this name\n",
    )


def test_a_wheel_without_the_file_or_without_schemas_ends_with_2(
    tool: Any, tmp_path: Path, check: Callable[..., tuple[int, str]]
) -> None:
    path = tmp_path / "empty.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("torch_npu/__init__.py", "")
    assert check(path) == (2, f"error: empty.whl has no {tool.SCHEMAS}: has the file been moved?\n")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(tool.SCHEMAS, "functions: []\n")
    assert check(path) == (
        2,
        f"error: {tool.SCHEMAS} in empty.whl has no line `func: NAME(...)`: has its form changed?\n",
    )


@pytest.fixture
def wheel_of(tool: Any, tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Makes a wheel whose file of schemas holds this."""

    def make(content: str | bytes) -> Path:
        path = tmp_path / "made_up.whl"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(tool.SCHEMAS, content)
        return path

    return make


def test_a_schema_that_cannot_be_parsed_ends_with_2(
    tool: Any, wheel: Callable[..., Path], check: Callable[..., tuple[int, str]]
) -> None:
    for old, new, reason in (
        ("Tensor target,", "Foo target,", "unknown type specifier."),
        ("-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)", "->", "expected ident but found 'eof' here:"),
    ):
        code, said = check(wheel(**{ONLINE: tool.EXPECTED[ONLINE].replace(old, new)}))
        assert code == 2
        assert said.startswith(f"error: the wheel's schema of {ONLINE} can't be parsed by this torch: {reason}")
        assert said.count("\n") == 1


def test_a_file_of_schemas_that_is_no_text_ends_with_2(
    tool: Any, wheel_of: Callable[[bytes], Path], check: Callable[..., tuple[int, str]]
) -> None:
    code, said = check(wheel_of(b"\xff\xfe\x00func: a(b) -> c"))
    assert code == 2
    assert said.startswith(f"error: {tool.SCHEMAS} in made_up.whl isn't UTF-8 text: 'utf-8' codec can't decode byte")


@pytest.mark.parametrize("form", ["- func: '{}'", '- func: "{}"', '-   func:  "{}"  # note', "- func: {}  # note"])
def test_quotes_and_comments_around_a_schema_are_no_part_of_it(
    form: str, tool: Any, wheel_of: Callable[[str], Path], check: Callable[..., tuple[int, str]]
) -> None:
    code, said = check(wheel_of("\n".join(form.format(name + text) for name, text in tool.EXPECTED.items())))
    assert (code, said) == (0, "made_up.whl: the schemas of all 3 operators agree with ours\n")


def test_an_operator_that_is_declared_twice_is_a_difference(
    tool: Any, wheel_of: Callable[[str], Path], check: Callable[..., tuple[int, str]]
) -> None:
    lines = [f"- func: {name}{text}" for name, text in tool.EXPECTED.items()]
    twice = wheel_of("\n".join([*lines, f"- func: {LOSS}(Tensor a) -> Tensor"]))
    assert check(twice) == (1, f"differs: {LOSS}: 2 times in the wheel\n")
    commented = wheel_of("\n".join([*lines, f"# - func: {LOSS}(Tensor a) -> Tensor"]))
    assert check(commented)[0] == 0


def test_a_file_that_is_no_wheel_ends_with_2(tmp_path: Path, check: Callable[..., tuple[int, str]]) -> None:
    path = tmp_path / "text.whl"
    path.write_text("not a zip")
    assert check(path) == (2, f"error: {path} can't be read as a wheel: File is not a zip file\n")
    code, said = check(tmp_path / "gone.whl")
    assert code == 2
    assert "gone.whl can't be read as a wheel" in said


def test_a_failed_download_is_an_error_unless_it_may_be_skipped(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:5] == ["-m", "pip", "download", "torch-npu"]
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, 1, "", "WARNING: slow\nERROR: No matching distribution found\n")

    monkeypatch.setattr(tool.subprocess, "run", pip)
    assert tool.main([]) == 2
    assert capsys.readouterr().err == "error: the wheel can't be had: ERROR: No matching distribution found\n"
    assert tool.main(["--or-skip"]) == 0
    assert capsys.readouterr().out == "skipped: the wheel can't be had: ERROR: No matching distribution found\n"


def test_a_download_that_takes_too_long_may_be_skipped(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pip(command: list[str], timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(tool.subprocess, "run", pip)
    assert tool.main(["--or-skip"]) == 0
    assert capsys.readouterr().out == "skipped: the wheel can't be had: pip took over 600 s\n"


def test_a_downloaded_wheel_is_read_and_a_difference_is_never_skipped(
    tool: Any, wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = wheel(**{BACKWARD: None})

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        (Path(command[command.index("--dest") + 1]) / source.name).write_bytes(source.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(tool.subprocess, "run", pip)
    assert tool.main(["--or-skip"], lambda name: tool.parse(name, tool.EXPECTED[name])) == 1
    assert capsys.readouterr().out == f"differs: {BACKWARD}: not in the wheel\n"


def test_our_registered_operators_are_what_the_tool_expects_of_the_vendors(tool: Any) -> None:
    published = {name: [text] for name, text in tool.EXPECTED.items()}
    assert list(tool.compare_all(published, tool.registered)) == []
    assert {BACKWARD, LOSS, ONLINE} <= set(dir(torch.ops.steadysum))


def test_the_ascend_kernel_tries_the_names_in_the_wheel_first() -> None:
    from steadysum.kernels import ascend

    assert (ascend.FORWARD[0], ascend.BACKWARD[0]) == (ONLINE, BACKWARD)
