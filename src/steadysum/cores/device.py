"""Device: the emulated many-core device, with the vendor's operators on it.

A call is a launch of the kernel's programs, one for each unit; a policy that finds something wrong launches again, with
a new epoch, at most max_retries times. Not here: what the units do (vendor_phases.py, proven_phases.py, cube.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor

from steadysum.cores.cube import cube
from steadysum.cores.faults import Arm, Armed
from steadysum.cores.grid import VENDOR, Geometry
from steadysum.cores.integrity import Damage, Ledger, damages
from steadysum.cores.job import Job, place
from steadysum.cores.load import Load
from steadysum.cores.outputs import Outputs, outputs_of, proven
from steadysum.cores.plan import Cut, Plan
from steadysum.cores.problem import Problem, problem_of
from steadysum.cores.proven_phases import proven_vector
from steadysum.cores.sync_notices import tell_syncs
from steadysum.cores.vendor_phases import vendor_vector
from steadysum.errors import RangeError, SteadySumError, SyncTimeout, TraceNotFoundError
from steadysum.maxsum import MaxSum
from steadysum.notices import heard
from steadysum.ops.loss_with_max_sum import fused_cross_entropy_loss_with_max_sum
from steadysum.ops.loss_with_max_sum_backward import fused_linear_cross_entropy_loss_with_max_sum_backward
from steadysum.ops.online_max_sum import OnlineMaxSum
from steadysum.settings import Settings
from steadysum.sync.actions import Program
from steadysum.sync.hazards import Hazards, find_hazards
from steadysum.sync.log import events
from steadysum.sync.memory import LINE, Memory
from steadysum.sync.policies import ENHANCED, LEGACY, POLICIES, Waits
from steadysum.sync.timing import QUIET, Timing
from steadysum.sync.virtual import Launch, Run, VirtualRunner
from steadysum.trace.events import Unit
from steadysum.trace.recorder import Trace

__all__ = ["CORES", "Call", "Device", "Runner"]

CORES: Final = 24  # AI cores of the chip in the field report
_MILLISECOND: Final = 1000.0  # microseconds
_PADDING: Final = {"zeros": 0.0, "nan": float("nan")}
HOST: Final = Unit(-1, "host")


class Runner(Protocol):
    """What runs a launch: VirtualRunner, ThreadRunner, or the replay of saved schedules."""

    def run(self, launch: Launch, call: int | str = 0) -> Run:
        """One launch; `call` names it."""
        ...


class Call(NamedTuple):
    """What became of one call of the operator."""

    number: int  # from 1
    runs: tuple[Run, ...]  # its launches; more than one where a policy launched again
    epochs: tuple[int, ...]  # of the launches
    error: SteadySumError | None  # what it raised

    @property
    def retries(self) -> int:
        """Launches beyond the first."""
        return len(self.runs) - 1

    @property
    def noticed(self) -> bool:
        """Whether a policy saw anything wrong: a wait, a read or a launch was tried again, or an error raised."""
        return (
            self.error is not None
            or self.retries > 0
            or any(type(entry.action).__name__ == "Note" for run in self.runs for entry in run.log)
        )


class Device:
    """An emulated chip: cores of one cube and two vector units, over one memory that keeps what calls leave in it.

    Args:
        cores: number of cores, >= 1; a call uses at most as many as it has tiles.
        settings: steadysum.settings.Settings: policy, timeouts, retries, pipelining. None: the defaults.
        faults: the faults that are armed, steadysum.cores.faults.Arm.
        load: the system load; None: a quiet device.
        seed: of all that is drawn: times, orders, faults.
        runner: who runs the programs; None: VirtualRunner(seed), a virtual clock.
        geometry: size of a tile; the vendor's is 128 x 256.
        logits_dtype: torch.bfloat16 or torch.float16: logits are rounded to it before max and exp, as A2 and A3 chips
            do; None: they stay fp32.
        keeps_digests: take digests of the operands at each launch, for check_integrity.
        keeps_log: record what happens, for traces and hazards.

    Source: the phases of the vendor's kernel for fused_linear_online_max_sum (CANN).

    >>> device = Device(cores=4, geometry=Geometry(4, 8))
    >>> device.linear_max_sum(torch.eye(3), torch.eye(3)).max
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        cores: int = CORES,
        settings: Settings | None = None,
        faults: Sequence[Arm] = (),
        load: Load | None = None,
        seed: int = 0,
        runner: Runner | None = None,
        *,
        geometry: Geometry = VENDOR,
        logits_dtype: torch.dtype | None = None,
        keeps_digests: bool = False,
        keeps_log: bool = True,
    ) -> None:
        _check(cores, geometry, logits_dtype)
        self.cores = cores
        self.settings = Settings() if settings is None else settings
        self.armed = Armed(tuple(faults), seed) if faults else None
        self.seed = seed
        self.geometry = geometry
        self.calls = 0
        self.last: Call | None = None
        self._timing: Timing = QUIET if load is None else load
        self._runner: Runner = VirtualRunner(seed) if runner is None else runner
        self._logits_dtype = logits_dtype
        self._keeps_digests = keeps_digests
        self._keeps_log = keeps_log
        self._memory = Memory()
        self._epoch = 0
        self._ledger: Ledger | None = None
        self._plan: Plan | None = None

    # ---- the operators ------------------------------------------------------------------------------------------

    def fused_linear_online_max_sum(
        self,
        input: Tensor,  # [BT, H]
        weight: Tensor,  # [V, H]
        target: Tensor,  # [BT]
        vocab_start_index: int,
        vocab_end_index: int,
        return_logits: bool = False,
    ) -> OnlineMaxSum:
        """steadysum.ops.online_max_sum.fused_linear_online_max_sum, computed by the device.

        With return_logits every tile has a product buffer of its own; else the memory-saving branch runs, with two.

        Raises:
            As that function, for arguments that don't fit; of fp64 operands: DtypeError, on other devices: DeviceError.
            SyncTimeout, StaleRead, AccuracyError: under policies 1 to 3, after max_retries, naming the cores.
        """
        problem = problem_of(input, weight, target, vocab_start_index, vocab_end_index, return_logits)
        found = self._call(problem)
        logits = None if found.logits is None else torch.from_numpy(found.logits).to(problem.dtype)
        result = OnlineMaxSum(
            torch.from_numpy(found.max),
            torch.from_numpy(found.sum),
            torch.from_numpy(found.predicted),
            torch.from_numpy(found.mask),
            torch.from_numpy(found.masked_target),
            logits,
        )
        masked = torch.from_numpy(problem.masked)
        result.target_logits = (result.logits_max + result.predicted_logits).masked_fill_(masked, 0.0)
        return result

    # Steps of the loss that no two cores share: there is nothing in them to emulate.
    fused_cross_entropy_loss_with_max_sum = staticmethod(fused_cross_entropy_loss_with_max_sum)
    fused_linear_cross_entropy_loss_with_max_sum_backward = staticmethod(
        fused_linear_cross_entropy_loss_with_max_sum_backward
    )

    def linear_max_sum(
        self,
        input: Tensor,  # [N, H]
        weight: Tensor,  # [V, H]
    ) -> MaxSum:
        """The statistics of each row, computed by the device; a call whose targets are all masked.

        Raises: as fused_linear_online_max_sum.
        """
        nowhere = torch.full(input.shape[:1], -1, dtype=torch.int64)
        problem = problem_of(input, weight, nowhere, 0, weight.shape[0], False)
        found = self._call(problem)
        return MaxSum(torch.from_numpy(found.max), torch.from_numpy(found.sum))

    # ---- what can be asked afterwards ---------------------------------------------------------------------------

    @property
    def policy(self) -> str:
        """The policy's name."""
        return POLICIES[self.settings.allreduce_policy]

    def fault_counts(self) -> dict[str, int]:
        """How often each armed fault has acted, by its text."""
        return {} if self.armed is None else self.armed.counts()

    def hazards(self) -> Hazards:
        """The hazards of the last call's last launch.

        Raises:
            TraceNotFoundError: the device keeps no log (keeps_log=False), so that nothing can be said.
        """
        self._require_log("hazards")
        run = self._last_run()
        return find_hazards(() if run is None else events(run))

    def trace(self) -> Trace:
        """What happened in the last call, launch after launch.

        Raises:
            TraceNotFoundError: the device keeps no log (keeps_log=False).
        """
        self._require_log("trace")
        call = self.last
        found = () if call is None else tuple(event for run in call.runs for event in events(run))
        what = {
            "cores": self.cores,
            "policy": self.policy,
            "seed": self.seed,
            "call": 0 if call is None else call.number,
        }
        return Trace(found, what, 0)

    def check_integrity(self) -> list[Damage]:
        """What is damaged after the last call: operands, guard words, stamped records; the first one first."""
        run = self._last_run()
        return [] if self._ledger is None or run is None else damages(self._ledger, self._memory, run)

    def _plan_of(self, cut: Cut) -> Plan:
        """The plan of the last call, if it serves, else a new one with its memory."""
        if self._plan is None or self._plan.cut != cut:
            self._plan = Plan(cut)
            self._memory.lay_out(self._plan.layout.regions)
        return self._plan

    def _require_log(self, what: str) -> None:
        if not self._keeps_log:
            raise TraceNotFoundError(
                f"{what} of a call", "a device that keeps no log", "one that does", "Make it with keeps_log=True."
            )

    def _last_run(self) -> Run | None:
        return None if self.last is None else self.last.runs[-1]

    # ---- a call -------------------------------------------------------------------------------------------------

    def _call(self, problem: Problem) -> Outputs:
        self.calls += 1
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a product's bits must not depend on the caller's threads
        try:
            return self._launch_until_right(problem)
        finally:
            torch.set_num_threads(threads)

    def _launch_until_right(self, problem: Problem) -> Outputs:
        runs: list[Run] = []
        epochs: list[int] = []
        retries = self.settings.max_retries if self.settings.allreduce_policy else 0
        for attempt in range(1 + retries):
            self._epoch += 1
            launch = _Launch(self, problem, self._epoch)
            runs.append(self._runner.run(launch.launch, f"{self.calls}.{attempt}"))
            epochs.append(self._epoch)
            self._ledger = launch.ledger
            error = launch.error(runs[-1])
            self.last = Call(self.calls, tuple(runs), tuple(epochs), error)
            tell_syncs(runs[-1])
            if error is None:
                return launch.outputs
        assert error is not None
        raise error


class _Launch:
    """One launch of the programs: makes them, and takes what they leave."""

    def __init__(self, device: Device, problem: Problem, epoch: int) -> None:
        self._device, self._problem, self._epoch = device, problem, epoch
        self._job: Job | None = None
        self._error: SteadySumError | None = None
        self.ledger: Ledger | None = None
        self.outputs: Outputs = None  # type: ignore[assignment]  # set by _end
        self.launch = Launch(
            device._memory,
            self._programs,
            device.armed,
            device._timing,
            retries=device.settings.max_retries,
            stops_at_error=True,
            log=device._keeps_log or heard(),  # the waits are told from it
            begin=self._begin,
            end=self._end,
        )

    def error(self, run: Run) -> SteadySumError | None:
        """What the call must raise after this launch; None: its outputs are proven, or the policy proves nothing."""
        if run.errors:
            return run.errors[0][1]
        if self._device.settings.allreduce_policy == 0:
            return None
        if run.dead or run.stuck:
            return _dead(self._epoch, (*run.dead, *run.stuck))
        return self._error

    def _begin(self) -> None:
        device, problem, armed = self._device, self._problem, self._device.armed
        settings = device.settings
        if armed is not None:
            armed.begin_call(device.calls, self._epoch)
        where = place(self._epoch, 0)

        def knob(kind: str, site: str) -> Arm | None:
            return None if armed is None else armed.acts(kind, HOST, where, site)

        floors, pads, packed = knob("tail", "floor"), knob("tail", "padding"), knob("crosstalk", "layout")
        rows, vocab = problem.input.shape[0], problem.weight.shape[0]
        cut = Cut(
            rows,
            vocab,
            device.cores,
            device.geometry,
            floors=floors is not None,
            overlaps=settings.enable_async,
            stores_logits=problem.return_logits,
            duplicates=settings.allreduce_policy == 3,
            alignment=LINE if packed is None else packed.knob("alignment"),
            target_dtype=problem.target_dtype,
        )
        plan = device._plan_of(cut)
        if armed is not None:
            armed.spoil_workspace(device._memory, where)
        device._memory.place_guards()  # of each launch anew, so that what is found broken was broken in it
        self._job = Job(
            epoch=self._epoch,
            input=problem.input.clone() if armed is not None else problem.input,
            weight=problem.weight.clone() if armed is not None else problem.weight,
            target=problem.target,
            masked=problem.masked,
            target_dtype=problem.target_dtype,
            pad=problem.pad,
            plan=plan,
            memory=device._memory,
            parts=ENHANCED if settings.allreduce_policy else LEGACY,
            waits=Waits(
                settings.sync_wait_timeout * _MILLISECOND,
                settings.heartbeat_interval * _MILLISECOND,
                settings.max_retries,
            ),
            verifies=settings.allreduce_policy >= 2,
            logits_dtype=device._logits_dtype,
            padding=None if pads is None else _PADDING[pads.knob("content")],
            armed=armed,
        )
        self.ledger = Ledger.of(self._job, device._keeps_digests)
        if armed is not None:
            armed.spoil_operands({"x": self._job.input.numpy(), "w": self._job.weight.numpy()}, where)

    def _programs(self) -> Mapping[Unit, Program]:
        job = self._job
        assert job is not None
        vector = proven_vector if job.parts.stamp else vendor_vector
        return {unit: cube(job, unit) if unit.role == "cube" else vector(job, unit) for unit in job.plan.units}

    def _end(self) -> None:
        job, armed = self._job, self._device.armed
        assert job is not None
        if armed is not None:
            armed.spoil_outputs(job.memory, place(self._epoch, 4))
        self.outputs = outputs_of(job, self._problem.return_logits)
        if job.parts.stamp:
            self._error = proven(job, self._problem.return_logits)


def _dead(epoch: int, units: Sequence[Unit]) -> SyncTimeout:
    cores = tuple(sorted({unit.core for unit in units}))
    return SyncTimeout(
        f"end of call {epoch}, awaited by the host",
        seen=f"no end of {', '.join(map(str, units))}",
        allowed="every unit ends",
        remedy="The cores named are dead, or stuck; run with fewer cores, or replace the device.",
        cores=cores,
    )


def _check(cores: Any, geometry: Geometry, logits_dtype: torch.dtype | None) -> None:
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise RangeError("cores", repr(cores), "an integer >= 1", "The chip of the field report has 24.")
    if min(geometry) < 1:
        raise RangeError("geometry", str(tuple(geometry)), "rows and columns >= 1", "The vendor's is (128, 256).")
    if logits_dtype not in (None, torch.bfloat16, torch.float16):
        raise RangeError(
            "logits_dtype", str(logits_dtype), "None, torch.bfloat16, torch.float16", "None keeps logits in fp32."
        )
