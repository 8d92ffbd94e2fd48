"""Profile of a rank, and the JSON document of `accel-bench profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, ValidationError

from accel_bench.analysis.schema import Document
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.errors import AccelBenchError
from accel_bench.result import Status
from accel_bench_profile.figures.modules import OUTSIDE, ModuleTimes, NamedKind

Kind: TypeAlias = Literal[NamedKind, "memory-bound", "communication", "compiled", "autograd"]
"""Kinds of operations and kernels. `memory-bound` are all that move data with little computation;
`compiled` is torch.compile's fused code on a CPU, whose parts are invisible; `autograd` is the
backward pass around operations, Python backward functions included."""

PROFILE_FOLDER = "profile"
"""Name of the folder in a run's folder with the profiled ranks' folders."""

PROFILE_FILE = "profile.json"
"""Name of a rank's profile in its folder."""


class ModulePhase(Frozen):
    """Module and phase of a training step, as the location of an event."""

    module: str = OUTSIDE
    """Path of the innermost module, such as `model.layers.0.mlp`."""

    phase: str = ""
    """Phase of the step, of `PhaseName`; empty after the last phase, or without marks."""


class CallTime(Frozen):
    """Calls of one kernel, operation or collective in a mean step."""

    name: str

    calls: float
    """Number of calls per step."""

    seconds: float
    """Seconds per step; for operations without nested ones, for collectives from start to end on
    this rank."""


class KernelTime(CallTime):
    """Time of a device's kernel, or of an operation on a CPU."""

    kind: Kind


class FusedKernel(CallTime):
    """Evidence of fusion: a kernel whose name shows fused operations."""

    what: str
    """Meaning of the name, such as `flash attention`."""


class Gap(Frozen):
    """Idle time in one module and phase that occurs in every recorded step."""

    place: ModulePhase

    seconds: float
    """Idle seconds in the step with the least."""

    own_seconds: float
    """Idle seconds without possible preemption by other processes, in the step with the least."""


class HostReads(Frozen):
    """Reads of tensor values by the host, or waits for the device, at one module and phase."""

    place: ModulePhase

    calls: float
    """Number of calls per step."""

    seconds: float
    """Seconds per step; negligible on a CPU."""


class LaunchGaps(Frozen):
    """Idle time of a device before kernels that the host launched late."""

    kernels: float
    """Number of kernels per step."""

    late: float
    """Number of kernels launched after the device had finished all earlier ones."""

    seconds: float
    """Idle seconds per step before late kernels."""

    median_seconds: float | None
    """Median seconds from a kernel's launch on the host to its start, of all kernels."""


class HostTime(Frozen):
    """Idle time of a mean step, with its causes."""

    measures: Literal["device idle", "no operation"]
    """Definition of idle time. `device idle`: the device has no work while the host is busy. `no
    operation`: on a CPU, the time outside of torch's operations: Python, sleeping, waiting."""

    seconds: float
    """Idle seconds per step."""

    share: float
    """Fraction of the recorded step."""

    waiting_seconds: float | None = None
    """Seconds in which the host waits for the device; null on a CPU."""

    preempted_seconds: float | None = None
    """Seconds in which the stepping thread was ready while other processes ran; null if the system
    does not report them."""

    gaps: tuple[Gap, ...] = ()
    """Longest idle gaps by module and phase, each a sum of gaps above a millisecond."""

    reads: tuple[HostReads, ...] = ()
    """Reads for which the host waits for the device, or would on a GPU, by module and phase."""

    launches: LaunchGaps | None = None
    """Late launches; null on a CPU, which launches no kernels."""


class CommunicationTime(Frozen):
    """Collectives of a mean step, including waiting for slower ranks."""

    seconds: float
    """Seconds with at least one collective in progress."""

    exposed_seconds: float
    """Seconds of communication without concurrent computation."""

    share: float
    """Fraction of the recorded step spent in communication."""

    exposed_share: float
    collectives: tuple[CallTime, ...] = ()


class MemoryPeak(Frozen):
    """Peak bytes of tensors on a rank's device, by category, over a few recorded steps.

    Earlier allocations count if the steps use them. The steps are part of no measurement.
    """

    steps: int
    """Number of recorded steps."""

    peak_bytes: int

    peak: dict[str, int]
    """Bytes at the peak by category, such as `activations`, the largest first."""

    snapshot: str = ""
    """Name of the snapshot file for https://pytorch.org/memory_viz; empty except on CUDA."""


class StepScalars(Frozen):
    """Seconds, tokens and memory of an unrecorded optimizer step of a rank; it is in no metric."""

    seconds: float

    elements: int
    """Number of tokens without padding."""

    memory_bytes: int | None = None
    """Peak of the allocator within the step; on a CPU, the resident memory after the step."""


class RankProfile(Frozen):
    """Profile of a rank, stored as `profile/rank<N>/profile.json`."""

    schema_version: int = 1
    rank: int
    device: str

    recorder: Literal["torch", "nsight"] = "torch"
    """Recorder of the steps: torch's profiler, or Nsight, which keeps figures in its own file."""

    steps: int
    """Number of recorded steps, or of steps marked for Nsight."""

    step_seconds: float | None
    """Median seconds of the recorded steps; on a GPU, where the host runs ahead within a cycle, the
    median of the cycles' means. Recording makes them longer than measured ones."""

    window_step_seconds: float | None
    """Median seconds of a step in the measured window."""

    kernel_seconds: float = 0.0
    """Seconds per mean step of all kernels, or on a CPU of all operations."""

    kernels: tuple[KernelTime, ...] = ()
    """Kernels with the most time or the most calls, the longest first."""

    kinds: dict[Kind, float] = Field(default_factory=dict)
    """Seconds per mean step by kind, of all kernels."""

    fused: tuple[FusedKernel, ...] = ()
    """Kernels whose names show fusion."""

    host: HostTime | None = None
    communication: CommunicationTime | None = None
    """Collectives; null if none was recorded."""

    modules: ModuleTimes | None = None
    """Time of a mean step by module; null if no step was recorded."""

    scalars: tuple[StepScalars, ...] = ()
    """Scalars of the steps before the recorded ones, equal in number."""

    memory: MemoryPeak | None = None
    """Peak memory by category; null if it was not requested."""

    saved: dict[str, int] | None = None
    """Bytes saved by one forward pass of a micro-batch for the backward pass, by the module that
    saves them first, the largest first. The sum is `saved_for_backward_bytes`."""

    traces: tuple[str, ...] = ()
    """Names of the Chrome traces in the folder above the rank's."""

    warnings: tuple[str, ...] = ()
    """Recordings and files that failed, with reasons."""

    @property
    def recorded(self) -> Literal["kernels", "operations"]:
        """Kind of the entries in `kernels`: a device's `kernels`, or the host's `operations`."""
        of_device = self.host is not None and self.host.measures == "device idle"
        return "kernels" if of_device else "operations"


class ProfileFinding(Frozen):
    """A finding of a profile, such as long idle time, with its cost."""

    kind: Literal["host", "read", "communication", "waiting", "launch", "kernels", "marks"]
    text: str

    seconds: float | None = None
    """Seconds of a step that the finding concerns; null if they cannot be measured here."""


class StackProfile(Frozen):
    """Profile of one run of a stack, over all ranks."""

    scenario: str
    stack: str
    sweep: dict[str, JsonValue] = Field(default_factory=dict)
    tag: str = ""
    """Name of the sweep point; empty without a sweep."""

    run_id: str
    status: Status
    """Status of the run; `failed` if a rank of a completed run recorded no step."""

    reasons: tuple[str, ...] = ()

    folder: str
    """Folder of the run's artifacts, with a folder for each rank, for TensorBoard."""

    events: str = ""
    """Folder of TensorBoard's event files with the steps' scalars, or the reason for none."""

    answer: str
    """Most important finding of the profile, in a sentence."""

    findings: tuple[ProfileFinding, ...] = ()
    """All findings, the `answer` first."""

    ranks: tuple[RankProfile, ...] = ()


class ProfileReport(Document):
    """The JSON document of `accel-bench profile`."""

    profiles: tuple[StackProfile, ...] = ()

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if all runs completed and all their ranks recorded steps, else 1."""
        complete = (
            profile.status.completed and profile.ranks and all(rank.steps for rank in profile.ranks)
            for profile in self.profiles
        )
        return int(not all(complete))


def read_profile(folder: Path) -> RankProfile | None:
    """Return the profile in a rank's folder, or None if there is none.

    Raises AccelBenchError for a profile that this version cannot read.
    """
    path = folder / PROFILE_FILE
    try:
        return RankProfile.model_validate_json(path.read_bytes())
    except OSError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise AccelBenchError(
            f"{path} is damaged, or of another version of accel-bench than this one "
            f"({where}: {first['msg']}); profile with the same version everywhere"
        ) from error
