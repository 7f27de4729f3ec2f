"""What the operator under diagnosis is called with, and where that comes from.

A source is data that both processes know; `check_source` refuses what can be seen to be wrong before any work, and
`make_call` makes the arguments in the process that runs the operator. Nothing is unpickled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steadysum.diagnosis.arguments import DTYPE_NAMES, DTYPES, Shape
from steadysum.diagnosis.isolation.target import Loaded, load_target, parse_target
from steadysum.diagnosis.operands import random_operands
from steadysum.errors import DiagnosisInputsError, WeightsFileError, WeightsFileNotFoundError
from steadysum.guard.tensors import map_tensors

__all__ = [
    "BundleInputs",
    "Call",
    "DrawnInputs",
    "FileInputs",
    "MadeInputs",
    "OwnInputs",
    "Source",
    "check_source",
    "copied",
    "make_call",
    "source_from_json",
    "source_to_json",
]

_MAKER: Final = "make_inputs"


class OwnInputs(NamedTuple):
    """The make_inputs() of the operator's own module."""

    seed: int = 0


class MadeInputs(NamedTuple):
    """A callable that the user names: module:callable or file.py:callable."""

    path: str
    seed: int = 0


class BundleInputs(NamedTuple):
    """The inputs that a guard saved."""

    folder: str


class FileInputs(NamedTuple):
    """Tensors of a safetensors file, by names of parameters, or by their places: "0", "1"."""

    file: str


class DrawnInputs(NamedTuple):
    """Random normal operands of a function (input, weight[, target])."""

    shape: Shape
    dtype: torch.dtype = torch.float32
    seed: int = 0


Source = OwnInputs | MadeInputs | BundleInputs | FileInputs | DrawnInputs
_KINDS: Final = {"own": OwnInputs, "made": MadeInputs, "bundle": BundleInputs, "file": FileInputs, "drawn": DrawnInputs}


class Call(NamedTuple):
    """Arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: str  # in words, for the report


def copied(call: Call) -> Call:
    """The call with copies of its tensors: for an operator that may write to them."""
    args, kwargs = map_tensors(lambda one: one.detach().clone(), (call.args, call.kwargs))
    return Call(args, kwargs, call.source)


def check_source(source: Source) -> None:
    """Refuses a source whose files or callable aren't there; imports and reads nothing large.

    Raises:
        DiagnosisTargetError, DiagnosisTargetNotFoundError: the callable of MadeInputs.
        BundleNotFoundError, WeightsFileNotFoundError: there is no such folder or file.
    """
    if isinstance(source, MadeInputs):
        parse_target(source.path, "--inputs")
    elif isinstance(source, BundleInputs) and not Path(source.folder).is_dir():
        from steadysum.guard.bundle import read_bundle  # says it in its own words

        read_bundle(source.folder)
    elif isinstance(source, FileInputs) and not Path(source.file).is_file():
        remedy = "Correct the path; it is read from the working directory."
        raise WeightsFileNotFoundError("--inputs", repr(source.file), "a safetensors file that is there", remedy)


def make_call(source: Source, loaded: Loaded, text: str) -> Call:
    """Makes the arguments.

    Args:
        source: where from.
        loaded: the operator.
        text: the operator's name, for errors.

    Returns:
        The arguments, on the devices where their source puts them.

    Raises:
        SteadySumError: the source can't be used, or doesn't fit the operator's parameters.
    """
    if isinstance(source, OwnInputs):
        call = _own(source, loaded, text)
    elif isinstance(source, MadeInputs):
        maker = load_target(parse_target(source.path, "--inputs"), "--inputs")
        call = _called(maker.call, source.seed, source.path)
    elif isinstance(source, BundleInputs):
        call = _from_bundle(source)
    elif isinstance(source, FileInputs):
        call = _from_file(source, loaded.call, text)
    else:
        call = _drawn(source, loaded.call, text)
    _check_fits(call, loaded.call, text)
    return call


def source_to_json(source: Source) -> dict[str, Any]:
    """The source as JSON can hold it.

    >>> source_to_json(OwnInputs(seed=3))
    {'kind': 'own', 'seed': 3}
    """
    kind = next(name for name, cls in _KINDS.items() if type(source) is cls)
    values = {"kind": kind, **source._asdict()}
    if isinstance(source, DrawnInputs):
        values |= {"shape": list(source.shape), "dtype": DTYPE_NAMES[source.dtype]}
    return values


def source_from_json(values: Mapping[str, Any]) -> Source:
    """The inverse of source_to_json."""
    rest = {key: value for key, value in values.items() if key != "kind"}
    if values["kind"] == "drawn":
        rest |= {"shape": Shape(*rest["shape"]), "dtype": DTYPES[rest["dtype"]]}
    source: Source = _KINDS[values["kind"]](**rest)
    return source


def _own(source: OwnInputs, loaded: Loaded, text: str) -> Call:
    maker = getattr(loaded.module, _MAKER, None)
    if not callable(maker):
        raise DiagnosisInputsError(
            f"inputs of {text}",
            f"a module without {_MAKER}()",
            f"{_MAKER}() beside the operator, --inputs, or --shape for functions of (input, weight[, target])",
            f"Write def {_MAKER}(): that returns a tuple of the operator's arguments.",
        )
    return _called(maker, source.seed, f"{_MAKER}() of {text}")


def _called(maker: Callable[..., Any], seed: int, path: str) -> Call:
    """What a maker returns, as arguments; it is given the seed if it has a parameter for one."""
    parameters = _parameters(maker)
    with_seed = parameters is not None and "seed" in parameters
    torch.manual_seed(seed)  # of makers without a seed
    try:
        made = maker(seed=seed) if with_seed else maker()
    except Exception as error:
        seen = f"{type(error).__name__}: {error}"
        remedy = "It is called without arguments, or with seed= if it has such a parameter."
        raise DiagnosisInputsError(path, seen, "a callable that returns arguments", remedy) from error
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict):
        return Call(made[0], made[1], path)
    if isinstance(made, (tuple, list)):
        return Call(tuple(made), {}, path)
    if isinstance(made, dict) and all(isinstance(key, str) for key in made):
        return Call((), made, path)
    if isinstance(made, Tensor):
        return Call((made,), {}, path)
    allowed = "a tuple of arguments, a dict of keyword arguments, (tuple, dict), or one tensor"
    raise DiagnosisInputsError(
        f"result of {path}", f"a value of type {type(made).__name__}", allowed, "Return one of these."
    )


def _from_bundle(source: BundleInputs) -> Call:
    from steadysum.guard.bundle import read_bundle

    bundle = read_bundle(source.folder)
    if "inputs" in bundle.left_out:
        reason = bundle.left_out["inputs"]
        remedy = "Name another bundle, or make the inputs with --inputs."
        raise DiagnosisInputsError(f"bundle {source.folder}", f"no inputs ({reason})", "a bundle with inputs", remedy)
    for place, value in [*enumerate(bundle.args), *bundle.kwargs.items()]:
        if type(value).__name__ == "Unsaved":
            seen = f"argument {place!r}, a {value.type} that couldn't be saved: {value.reason}"
            remedy = "Make the inputs with --inputs."
            raise DiagnosisInputsError(f"bundle {source.folder}", seen, "tensors and plain values", remedy)
    return Call(bundle.args, bundle.kwargs, f"bundle {source.folder}")


def _from_file(source: FileInputs, call: Callable[..., Any], text: str) -> Call:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(source.file)
    except (SafetensorError, OSError) as error:
        seen = f"{source.file!r} ({error})"
        raise WeightsFileError("--inputs", seen, "a safetensors file, whole", "Save it again.") from None
    places = [str(place) for place in range(len(tensors))]
    if tensors and sorted(tensors) == sorted(places):
        return Call(tuple(tensors[place] for place in places), {}, source.file)
    parameters = _parameters(call)
    names = list(parameters) if parameters is not None else []
    if not tensors or not set(tensors) <= set(names):
        allowed = f"names of the parameters of {text} ({', '.join(names) or 'unknown'}), or 0, 1, ... for their places"
        remedy = "Save the tensors under these names."
        raise DiagnosisInputsError(source.file, f"tensors {sorted(tensors)}", allowed, remedy)
    return Call((), dict(tensors), source.file)


def _drawn(source: DrawnInputs, call: Callable[..., Any], text: str) -> Call:
    parameters = _parameters(call)
    required = ["input", "weight"]  # of a builtin, whose parameters can't be read
    if parameters is not None:
        required = [name for name, one in parameters.items() if one.default is one.empty and _is_positional(one)]
    takes_target = len(required) == 3 and required[2] in ("target", "targets", "labels")
    if len(required) != 2 and not takes_target:
        raise DiagnosisInputsError(
            f"--shape for {text}",
            f"required parameters ({', '.join(required)})",
            "(input, weight) or (input, weight, target)",
            f"Write {_MAKER}() beside the operator, or name --inputs.",
        )
    operands = random_operands(source.shape, source.dtype, source.seed)
    where = f"random normal, {','.join(map(str, source.shape))} {DTYPE_NAMES[source.dtype]}"
    if not takes_target:
        return Call((operands.input, operands.weight), {}, where)
    generator = torch.Generator().manual_seed(source.seed + 1)
    target = torch.randint(source.shape.vocabulary, (source.shape.rows,), generator=generator)  # [N]
    return Call((operands.input, operands.weight, target), {}, where)


def _check_fits(call: Call, operator: Callable[..., Any], text: str) -> None:
    try:
        signature = inspect.signature(operator)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        seen = f"{len(call.args)} positional arguments and {sorted(call.kwargs)} by name ({error})"
        remedy = "Let the inputs' source return what the operator takes."
        raise DiagnosisInputsError(f"inputs of {text}, from {call.source}", seen, str(signature), remedy) from None


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters, or None: a builtin that doesn't tell them."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
