"""Every exception class of steadysum, and the one form that their texts have.

Each class is also a subclass of the builtin that torch raises for the same mistake, so that `except RuntimeError`
around a torch call keeps working when the call is replaced by ours. Not here: the checks that raise (ops/arguments.py).
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AccuracyError",
    "BundleError",
    "BundleNotFoundError",
    "DeviceError",
    "DiagnosisInputsError",
    "DiagnosisTargetError",
    "DiagnosisTargetNotFoundError",
    "DtypeError",
    "GradientError",
    "KernelUnavailableError",
    "LabelSmoothingError",
    "LayoutError",
    "LockError",
    "MetricsAddressError",
    "MetricsFileError",
    "MetricsFileNotFoundError",
    "MissingExtraError",
    "OperandTypeError",
    "OptionError",
    "PatchError",
    "RangeError",
    "RulesError",
    "ScheduleError",
    "SettingsError",
    "ShapeError",
    "StaleRead",
    "SteadySumError",
    "SyncTimeout",
    "TargetRangeError",
    "TargetShapeError",
    "TraceFileError",
    "TraceNotFoundError",
    "UnknownKernelError",
    "UnsupportedModelError",
    "WeightsFileError",
    "WeightsFileNotFoundError",
]


class SteadySumError(Exception):
    """Base of all errors: what was wrong, the value seen, what is allowed, and what to do.

    >>> print(RangeError("softcap", seen="-1.0", allowed="a finite number > 0", remedy="Pass None for no softcap."))
    softcap: got -1.0; allowed: a finite number > 0. Pass None for no softcap.
    """

    def __init__(self, what: str, seen: str, allowed: str, remedy: str) -> None:
        super().__init__(what, seen, allowed, remedy)  # all four in args: the error survives pickling between processes
        self.what = what
        self.seen = seen
        self.allowed = allowed
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}: got {self.seen}; allowed: {self.allowed}. {self.remedy}"


class OperandTypeError(SteadySumError, TypeError):
    """An argument is of the wrong Python type."""


class ShapeError(SteadySumError, RuntimeError):
    """Operands whose ranks or sizes don't fit each other."""


class TargetShapeError(ShapeError, ValueError):
    """target hasn't the leading shape of input (torch.nn.functional.cross_entropy: ValueError)."""


class DtypeError(SteadySumError, RuntimeError):
    """A dtype that isn't supported, or operands of different dtypes."""


class DeviceError(SteadySumError, RuntimeError):
    """Operands on different devices, or on a device that holds no values."""


class LayoutError(SteadySumError, RuntimeError):
    """A tensor that isn't dense and strided."""


class RangeError(SteadySumError, ValueError):
    """A value outside its range."""


class LabelSmoothingError(RangeError, RuntimeError):
    """label_smoothing outside of [0, 1] (torch.nn.functional.cross_entropy: RuntimeError)."""


class OptionError(SteadySumError, RuntimeError):
    """Options that contradict each other."""


class TargetRangeError(SteadySumError, IndexError):
    """A target that isn't the index of a real vocabulary column."""


class GradientError(SteadySumError, NotImplementedError):
    """Gradients were asked for that an operator doesn't have: of this operand, in this mode, or of this order."""


class UnknownKernelError(SteadySumError, ValueError):
    """No kernel has this name."""


class KernelUnavailableError(SteadySumError, RuntimeError):
    """A kernel named by the caller can't run here, or can't run this problem."""


class _CoreError(SteadySumError):
    """Base of errors that name the cores at fault."""

    def __init__(self, what: str, seen: str, allowed: str, remedy: str, cores: tuple[int, ...] = ()) -> None:
        super().__init__(what, seen, allowed, remedy)
        self.args = (*self.args, cores)
        self.cores = cores  # ascending


class AccuracyError(_CoreError, RuntimeError):
    """A result that fails a check of its accuracy, again and again, with the evidence that there is."""

    def __init__(
        self,
        what: str,
        seen: str,
        allowed: str,
        remedy: str,
        cores: tuple[int, ...] = (),
        findings: tuple[Any, ...] = (),
        attribution: str | None = None,
        bundle: str | None = None,
    ) -> None:
        super().__init__(what, seen, allowed, remedy, cores)
        self.args = (*self.args, findings, attribution, bundle)
        self.findings = findings  # of guard.checks.protocol.Finding: what failed of the first result
        self.attribution = attribution  # "transient", "persistent", "application", "undecided"; None: not a guard's
        self.bundle = bundle  # the folder with all evidence, where one was written


class SyncTimeout(_CoreError, TimeoutError):  # noqa: N818 - the name that the design gives it
    """Cores that didn't come to a sync point, in all the time and retries that they were given."""


class StaleRead(_CoreError, RuntimeError):  # noqa: N818
    """A record whose stamp isn't that of this call: its writer's partial isn't there, or isn't whole, or isn't seen.

    Whether its write never reached memory or the read doesn't see it, nobody who only reads can tell: `cores` has both
    cores, where they are two, and `writer` and `reader` which is which; reader None: the host, or the writer itself.
    """

    def __init__(
        self,
        what: str,
        seen: str,
        allowed: str,
        remedy: str,
        cores: tuple[int, ...] = (),
        writer: int | None = None,
        reader: int | None = None,
    ) -> None:
        super().__init__(what, seen, allowed, remedy, cores)
        self.args = (*self.args, writer, reader)
        self.writer = writer
        self.reader = reader


class ScheduleError(SteadySumError, ValueError):
    """A schedule that can't be read, or that doesn't fit what it is replayed on."""


class SettingsError(RangeError):
    """A setting outside its range, or one that isn't known."""


class RulesError(SteadySumError, ValueError):
    """A file of version rules that can't be read, or an entry in it that is no rule."""


class LockError(SteadySumError, ValueError):
    """A file that isn't the lock of an environment, or isn't whole."""


class TraceNotFoundError(SteadySumError, FileNotFoundError):
    """A trace that was asked for isn't there."""


class TraceFileError(SteadySumError, ValueError):
    """A file that isn't a trace, or isn't whole."""


class MetricsAddressError(SteadySumError, OSError):
    """An address at which metrics can't be served: taken, or none of this machine's."""


class MetricsFileNotFoundError(SteadySumError, FileNotFoundError):
    """A file of metrics that was asked for isn't there."""


class MetricsFileError(SteadySumError, ValueError):
    """A file that isn't a run's metrics, or isn't whole, or can't be told from another one's."""


class MissingExtraError(SteadySumError, ImportError):
    """A package of an optional extra isn't installed."""


class WeightsFileNotFoundError(SteadySumError, FileNotFoundError):
    """A file of weights or inputs named by the user isn't there."""


class WeightsFileError(SteadySumError, ValueError):
    """A file of weights or inputs that can't be used: not safetensors, tensor missing, not a matrix."""


class UnsupportedModelError(SteadySumError, NotImplementedError):
    """A model that can't be patched: its forward, head or loss isn't one whose meaning is known."""


class PatchError(SteadySumError, RuntimeError):
    """A patch of another library's object that is there already, or that isn't there any more."""


class BundleNotFoundError(SteadySumError, FileNotFoundError):
    """A bundle that was asked for isn't there."""


class BundleError(SteadySumError, ValueError):
    """A folder that isn't a bundle, or isn't whole."""


class DiagnosisTargetNotFoundError(SteadySumError, ImportError):
    """The module, file or name of an operator under diagnosis isn't there."""


class DiagnosisTargetError(SteadySumError, ValueError):
    """An operator under diagnosis that is named in no known form, can't be imported, or can't be called."""


class DiagnosisInputsError(SteadySumError, ValueError):
    """Inputs for an operator under diagnosis that can't be made, or don't fit it."""
