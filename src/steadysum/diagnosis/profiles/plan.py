"""What `steadysum profiles --measure` measures: which profiles, where, at which rates of faults, in how many calls.

Not here: the measurement (measure.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.profiles.campaign import Group
from steadysum.diagnosis.profiles.costs import EMULATED_PLACES, NATIVE_SHAPES, EmulatedPlace
from steadysum.diagnosis.profiles.promises import PROMISES
from steadysum.errors import RangeError
from steadysum.settings import POLICIES, Settings

__all__ = ["BASELINE", "DEVICES", "RATES", "MeasurePlan", "calls_of", "settings_of", "verify_of"]

DEVICES: Final = ("emulated", "native", "both")
RATES: Final = (0.05, 0.10)  # the field report's share of deviating calls, R1
BASELINE: Final = "legacy"  # no profile: it shows that the faults do harm
# Enough to show the promise where no call, or one in ten thousand, is wrong; see promises.calls_needed.
_CALLS: Final = {"training": 10_000, "inference": 37_000, "batch": 4_000}
_CALLS_OF_ALL_KINDS: Final = 4_000  # some kinds are seen by no policy, and a share far from the promise shows early
_BASELINES_CALLS: Final = 1_500
_VERIFY: Final = {"legacy": "off", "enhanced": "checksum", "verified": "checksum", "duplicated": "checksum"}


@dataclass(frozen=True)
class MeasurePlan:
    """One measurement.

    Raises:
        RangeError: values outside of their ranges.
    """

    device: str = "both"
    rates: tuple[float, ...] = RATES  # shares of calls
    calls: int | None = None  # of each campaign; None: as many as the promise takes
    seed: int = 0
    profiles: tuple[str, ...] = tuple(PROMISES)
    emulated_places: tuple[EmulatedPlace, ...] = EMULATED_PLACES
    native_shapes: tuple[tuple[str, Shape], ...] = NATIVE_SHAPES

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise RangeError("--device", repr(self.device), ", ".join(DEVICES), "both is the default.")
        for rate in self.rates:
            if not 0.0 < rate <= 0.5:
                raise RangeError(
                    "--rate", f"{100 * rate:g}", "a percentage above 0, up to 50", "The report has 5 to 10."
                )

    @property
    def emulates(self) -> bool:
        """Whether the emulated device is measured."""
        return self.device != "native"

    @property
    def runs_native(self) -> bool:
        """Whether the native kernel is measured."""
        return self.device != "emulated"


def settings_of(subject: str) -> Settings:
    """The settings of a profile, or of the baseline."""
    return Settings(allreduce_policy=0) if subject == BASELINE else Settings.profile(subject)


def verify_of(profile: str) -> str:
    """How the native kernel verifies under a profile: by checksums, for it has no syncs that a policy could act on."""
    return _VERIFY[POLICIES[settings_of(profile).allreduce_policy]]


def calls_of(plan: MeasurePlan, subject: str, group: Group) -> int:
    """How many calls a campaign takes: of a profile, or of a way to verify, which has as many as its profiles."""
    if plan.calls is not None:
        return plan.calls
    wanted = max(
        (_CALLS[name] for name in plan.profiles if subject in (name, verify_of(name))), default=_BASELINES_CALLS
    )
    return min(wanted, _CALLS_OF_ALL_KINDS) if group is Group.ALL else wanted
