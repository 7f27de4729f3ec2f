"""How a call says that its results are to be verified: `verify`, and the one text in which it travels with the kernel.

An operator of torch.library has `str kernel` among its parameters, and what verifies a result is a form of a kernel:
"native+checksum" is native, verified by checksums. So the wish goes wherever the kernel's name goes: through compiled
code, into backward, through functorch. Users never write such a text; `kernel=` refuses it.
Not here: any verification (native_checked.py, sampled.py), or what runs it (registry.py).
"""

from __future__ import annotations

from typing import Final

from steadysum.errors import OperandTypeError, RangeError

__all__ = ["CHECKSUM", "OFF", "SAMPLED", "SEPARATOR", "VERIFICATIONS", "check_verify", "choice", "split"]

OFF: Final = "off"
CHECKSUM: Final = "checksum"
SAMPLED: Final = "sampled"
VERIFICATIONS: Final = (OFF, CHECKSUM, SAMPLED)
SEPARATOR: Final = "+"  # in no kernel's name


def check_verify(verify: object) -> None:
    """Raise unless `verify` is one of VERIFICATIONS."""
    if not isinstance(verify, str):
        allowed = ", ".join(map(repr, VERIFICATIONS))
        raise OperandTypeError("type of verify", type(verify).__name__, f"str, {allowed}", "Pass 'off' for none.")
    if verify not in VERIFICATIONS:
        raise RangeError(
            "verify",
            seen=repr(verify),
            allowed=", ".join(map(repr, VERIFICATIONS)),
            remedy="'checksum' needs kernel native; every kernel has 'sampled'.",
        )


def choice(kernel: str, verify: str) -> str:
    """A kernel's name, or "auto", and a verification as one text.

    >>> choice("auto", "checksum"), choice("eager", "off")
    ('auto+checksum', 'eager')
    """
    return kernel if verify == OFF else f"{kernel}{SEPARATOR}{verify}"


def split(chosen: str) -> tuple[str, str]:
    """What `choice` put together.

    Raises:
        RangeError: what follows the kernel's name is no verification; only an operator called by its torch name,
            torch.ops.steadysum..., can be given such a text.

    >>> split("auto+checksum"), split("eager")
    (('auto', 'checksum'), ('eager', 'off'))
    """
    kernel, separator, verify = chosen.partition(SEPARATOR)
    if not separator:
        return kernel, OFF
    check_verify(verify)
    return kernel, verify
