"""The entry point of `steadysum`, and the one place where errors become messages.

A user's mistake ends in one red line, a hint, and exit code 2, never in a traceback. Exit codes of all commands:
0 fine, 1 a kernel deviates or the environment is bad, 2 could not run or finish, 130 interrupted twice.
"""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import torch
import typer
from rich.text import Text

import steadysum
from steadysum.cli import bench, check, doctor, emulate, monitor, profiles, trace
from steadysum.cli.terminal import stderr
from steadysum.errors import SteadySumError

COULD_NOT_RUN = 2

app = typer.Typer(
    name="steadysum",
    help="Fused linear + online max-sum whose answer can be trusted: check it, time it, see what runs here.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("check")(check.check)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.command("emulate")(emulate.emulate)
app.command("profiles")(profiles.profiles)
app.add_typer(trace.app, name="trace")
app.add_typer(monitor.app, name="monitor")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(steadysum.__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line, and exits."""
    try:
        app(prog_name="steadysum")
    except SteadySumError as error:
        _fail(f"{error.what}: got {error.seen}", f"Allowed: {error.allowed}. {error.remedy}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", "Check the path, and that it can be written to.")
    except MemoryError:
        _fail("not enough memory for this shape", "Choose a smaller --shape.")
    except torch.OutOfMemoryError as error:  # of a GPU
        _fail(f"not enough memory on the device: {str(error).splitlines()[0]}", "Choose a smaller --shape.")
    except Exception:
        # Python's own exit code for this is 1, which here says that a kernel deviates.
        traceback.print_exc()
        _fail("this is a bug in steadysum, not a verdict on a kernel", "Please report it with the lines above.")


def _fail(message: str, hint: str) -> None:
    stderr.print(Text.assemble(("error: ", "bold red"), (message, "red")), soft_wrap=True)
    stderr.print(Text(hint, style="dim"), soft_wrap=True)
    sys.exit(COULD_NOT_RUN)
