"""The operator under diagnosis: from the text that names it to the callable.

The text is read and looked up in the tool's own process (`parse_target`), which imports none of the user's code; that
happens in the process that runs it (`load_target`). Not here: what it is called with (inputs.py).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import keyword
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from steadysum.errors import DiagnosisTargetError, DiagnosisTargetNotFoundError

__all__ = ["Loaded", "Target", "load_target", "parse_target"]

_FORMS: Final = "package.module:callable or path/file.py:callable"
_MOST_LISTED: Final = 12  # names of a module that an error lists


class Target(NamedTuple):
    """Where a callable is; exactly one of module and file is set."""

    text: str  # as the user wrote it
    module: str | None  # package.module
    file: Path | None  # absolute
    name: str  # in the module: name, or name.of.an.attribute


class Loaded(NamedTuple):
    """A callable, in the process that runs it."""

    call: Callable[..., Any]
    module: ModuleType  # that the text names


def parse_target(text: str, what: str = "target") -> Target:
    """Reads the text that names a callable, and sees that its file or package is there; imports nothing.

    Args:
        text: package.module:callable or path/file.py:callable; the callable may be an attribute, as Class.method is.
        what: the option that the text comes from, for errors.

    Returns:
        The target; a file's path is absolute, so that it means the same in a process with another working directory.

    Raises:
        DiagnosisTargetError: the text is of neither form.
        DiagnosisTargetNotFoundError: there is no such file or package.

    >>> parse_target("torch.nn.functional:linear").module
    'torch.nn.functional'
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place:
        raise DiagnosisTargetError(what, repr(text), _FORMS, "Name the callable behind a colon.")
    if not _is_dotted(name):
        raise DiagnosisTargetError(what, repr(text), _FORMS, f"{name!r} is no name of a callable.")
    if place.endswith(".py") or "/" in place:
        return Target(text, None, _file(what, place), name)
    if not _is_dotted(place):
        raise DiagnosisTargetError(what, repr(text), _FORMS, f"{place!r} is no name of a module.")
    top = place.partition(".")[0]
    if not _is_there(top):
        remedy = "Install it, or start the tool in the folder that holds it."
        raise DiagnosisTargetNotFoundError(what, repr(text), f"a module that can be imported; {top!r} can't", remedy)
    return Target(text, place, None, name)


def load_target(target: Target, what: str = "target") -> Loaded:
    """Imports the module and finds the callable in it: this runs the user's code.

    Raises:
        DiagnosisTargetNotFoundError: the module or the name isn't there.
        DiagnosisTargetError: the import raises, or what is found can't be called as an operator.

    >>> load_target(parse_target("torch:mul")).call.__name__
    'mul'
    """
    module = _import(target, what)
    found: Any = module
    for part in target.name.split("."):
        if not hasattr(found, part):
            callables = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
            listed = ", ".join(callables[:_MOST_LISTED]) or "none"
            more = ", ..." if len(callables) > _MOST_LISTED else ""
            allowed = f"a callable of {module.__name__.removeprefix(_PREFIX)} ({listed}{more})"
            raise DiagnosisTargetNotFoundError(what, repr(target.text), allowed, "Correct the name behind the colon.")
        found = getattr(found, part)
    _check_callable(found, target, what)
    return Loaded(found, module)


_PREFIX: Final = "_steadysum_target_"  # of a file's module name: a file called random.py must not hide Python's own


def _import(target: Target, what: str) -> ModuleType:
    try:
        if target.file is not None:
            return _import_file(target.file)
        return importlib.import_module(str(target.module))
    except ModuleNotFoundError as error:
        allowed = "a module that can be imported, with all that it imports"
        remedy = f"No module named {error.name!r}: install it, or start the tool in the folder that holds it."
        raise DiagnosisTargetNotFoundError(what, repr(target.text), allowed, remedy) from error
    except Exception as error:
        seen = f"{target.text!r}, whose import raises {type(error).__name__}: {error}"
        raise DiagnosisTargetError(
            what, seen, "a module that can be imported", "Import it alone to see why."
        ) from error


def _import_file(file: Path) -> ModuleType:
    name = _PREFIX + file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    folder = str(file.parent)
    if folder not in sys.path:  # its neighbours can be imported; last, so that they hide none of Python's own modules
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the file look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _check_callable(found: Any, target: Target, what: str) -> None:
    allowed = "a function, or an object that can be called"
    if isinstance(found, type):
        remedy = "Name an instance of it, or a function that makes one once and calls it."
        raise DiagnosisTargetError(what, f"{target.text!r}, a class", allowed, remedy)
    if not callable(found):
        seen = f"{target.text!r}, a value of type {type(found).__name__}"
        raise DiagnosisTargetError(what, seen, allowed, "Correct the name behind the colon.")
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        seen = f"{target.text!r}, a coroutine or a generator"
        raise DiagnosisTargetError(what, seen, allowed, "Wrap it into a function that returns its results.")


def _file(what: str, place: str) -> Path:
    path = Path(place).expanduser()
    if path.suffix != ".py":
        raise DiagnosisTargetError(what, repr(place), _FORMS, "A path must end in .py.")
    if not path.is_file():
        remedy = "Correct the path; it is read from the working directory."
        raise DiagnosisTargetNotFoundError(what, repr(place), "a Python file that is there", remedy)
    return path.resolve()


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))


def _is_there(top: str) -> bool:
    """Whether a top-level module can be found, without importing it."""
    if top in sys.builtin_module_names or top in sys.modules:
        return True
    return importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is not None
