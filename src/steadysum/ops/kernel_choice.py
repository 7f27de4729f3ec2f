"""The arguments `kernel` and `verify` of public functions, as the one text that operators take.

Not here: the other arguments (arguments.py, loss_arguments.py, vendor_arguments.py), that text
(kernels/verification.py), or what it makes run (kernels/registry.py).
"""

from __future__ import annotations

from typing import Any

from steadysum.errors import OperandTypeError
from steadysum.kernels.registry import check_name
from steadysum.kernels.verification import OFF, check_verify, choice

__all__ = ["accept_kernel"]


def accept_kernel(kernel: Any, verify: Any) -> str:
    """Check both, and put them together."""
    if not isinstance(kernel, str):
        raise OperandTypeError("type of kernel", type(kernel).__name__, "str", "Pass a kernel's name, or 'auto'.")
    check_name(kernel)
    if isinstance(verify, str) and verify == OFF:  # nearly every call
        return kernel
    check_verify(verify)
    return choice(kernel, verify)
