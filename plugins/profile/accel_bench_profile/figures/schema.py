"""What a profile of a rank holds, and what `accel-bench profile` prints of it."""

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
"""Kinds of operations and kernels. `memory-bound` is all that moves numbers and computes little;
`compiled` is what torch.compile made of several operations on a CPU, whose parts it does not show;
`autograd` is what the backward pass does around operations, backward functions in Python included.
"""

PROFILE_FOLDER = "profile"
"""Name of the folder in a run's folder that holds a folder of each profiled rank."""

PROFILE_FILE = "profile.json"
"""Name of a rank's profile in its folder."""

UNNAMED = OUTSIDE
"""Stands for the module of what no module did."""


class Place(Frozen):
    """A place in a training step."""

    module: str = UNNAMED
    """Path of the innermost module, such as `model.layers.0.mlp`."""

    phase: str = ""
    """Phase of the step, of `PhaseName`; empty for what follows the last one, and where the engine
    marks none."""


class CallTime(Frozen):
    """Calls of one name in a mean step: of a kernel, an operation or a collective."""

    name: str

    calls: float
    """Calls in a step."""

    seconds: float
    """Seconds in a step; of an operation without those of operations that it calls, of a collective
    from its start to its end on this rank."""


class KernelTime(CallTime):
    """One kernel of a device, or one operation on a CPU."""

    kind: Kind


class FusedKernel(CallTime):
    """Evidence that several operations ran as one kernel: its name."""

    what: str
    """What that name stands for, such as `flash attention`."""


class Gap(Frozen):
    """A place at which every recorded step stood still."""

    place: Place

    seconds: float
    """Seconds in the step with the least."""

    own_seconds: float
    """What is left of them in the step with the least, where what other work may have taken from
    the process there is taken off."""


class HostReads(Frozen):
    """A place at which the host reads a value of a tensor, or waits for the device."""

    place: Place

    calls: float
    """Calls in a step."""

    seconds: float
    """Seconds in a step; on a CPU next to nothing."""


class LaunchGaps(Frozen):
    """How long a device stands idle before kernels that the host launched too late."""

    kernels: float
    """Kernels in a step."""

    late: float
    """Kernels that were launched after the device had finished all before."""

    seconds: float
    """Idle seconds in a step before them."""

    median_seconds: float | None
    """Median from the launch on the host to the start of a kernel, of all kernels."""


class HostTime(Frozen):
    """Time in which a step stands still."""

    measures: Literal["device idle", "no operation"]
    """`device idle`: the device has nothing to do while the host works. `no operation`: on a CPU,
    which is the device itself, the time in no operation of torch: Python, sleeping, waiting."""

    seconds: float
    """Seconds in a step."""

    share: float
    """Of the seconds of the recorded step."""

    waiting_seconds: float | None = None
    """Seconds in which the host waits for the device; null on a CPU."""

    preempted_seconds: float | None = None
    """Seconds in which the thread of the steps was ready, and the system ran other work; null where
    the system does not say."""

    gaps: tuple[Gap, ...] = ()
    """The longest, by place: single gaps of more than a millisecond, added up."""

    reads: tuple[HostReads, ...] = ()
    """What makes, or on a GPU would make, the host wait for the device; by place."""

    launches: LaunchGaps | None = None
    """Null on a CPU, which launches nothing."""


class CommunicationTime(Frozen):
    """Collectives of a mean step, with what waits for slower ranks."""

    seconds: float
    """Seconds in which at least one collective is under way."""

    exposed_seconds: float
    """Seconds of these in which nothing is computed."""

    share: float
    """`seconds` of those of the recorded step."""

    exposed_share: float
    collectives: tuple[CallTime, ...] = ()


class MemoryPeak(Frozen):
    """Most bytes of tensors on a rank's device at once, by category, over a few steps.

    What was there before counts where the steps use it. The steps are those of the recording, and
    no measured ones.
    """

    steps: int
    """Recorded steps."""

    peak_bytes: int

    peak: dict[str, int]
    """Its bytes by category, such as `activations`, the largest first."""

    snapshot: str = ""
    """File beside the profile that https://pytorch.org/memory_viz shows; empty but on CUDA."""


class StepScalars(Frozen):
    """One optimizer step of a rank that nothing recorded, and that no metric is made of."""

    seconds: float

    elements: int
    """Tokens that are not padding."""

    memory_bytes: int | None = None
    """On CUDA the peak of allocated bytes within the step, else the resident memory after it."""


class RankProfile(Frozen):
    """What one profiled rank leaves as `profile/rank<N>/profile.json`."""

    schema_version: int = 1
    rank: int
    device: str

    recorder: Literal["torch", "nsight"] = "torch"
    """What recorded the steps: torch's profiler, or Nsight, whose own file has the figures."""

    steps: int
    """Recorded steps that the figures are means of; of Nsight those that were marked for it."""

    step_seconds: float | None
    """Median of the recorded steps, and on a GPU, where the host runs ahead within a cycle, the
    median over cycles of their means: longer than a measured one, since recording is work."""

    window_step_seconds: float | None
    """Median step of the measured window, which nothing recorded."""

    kernel_seconds: float = 0.0
    """Seconds of all kernels, or on a CPU of all operations, in a mean step."""

    kernels: tuple[KernelTime, ...] = ()
    """Kernels with the most time, and those with the most calls, the longest first."""

    kinds: dict[Kind, float] = Field(default_factory=dict)
    """Seconds of all of them in a mean step, by kind."""

    fused: tuple[FusedKernel, ...] = ()
    """Kernels whose name says that they are fused."""

    host: HostTime | None = None
    communication: CommunicationTime | None = None
    """Null where no collective was recorded."""

    modules: ModuleTimes | None = None
    """Time of a mean step by module; null where no step was recorded."""

    scalars: tuple[StepScalars, ...] = ()
    """Steps before the recorded ones, as many as those."""

    memory: MemoryPeak | None = None
    """What memory was used for; null where that was not requested."""

    saved: dict[str, int] | None = None
    """Bytes that one forward pass of a micro-batch keeps for the backward pass, by the module that
    was the first to save them; the largest first. They add up to `saved_for_backward_bytes`."""

    traces: tuple[str, ...] = ()
    """Names of the Chrome traces in the folder that the folders of the ranks lie in."""

    warnings: tuple[str, ...] = ()
    """What could not be recorded or written, and why."""

    @property
    def recorded(self) -> Literal["kernels", "operations"]:
        """What `kernels` holds: those of a device, or the operations of the host."""
        of_device = self.host is not None and self.host.measures == "device idle"
        return "kernels" if of_device else "operations"


class Finding(Frozen):
    """One thing that may be worth looking at."""

    kind: Literal["host", "read", "communication", "waiting", "launch", "kernels", "marks"]
    text: str

    seconds: float | None = None
    """Seconds of a step that it is about; null where they cannot be measured here."""


class StackProfile(Frozen):
    """The profile of one run of a stack."""

    scenario: str
    stack: str
    sweep: dict[str, JsonValue] = Field(default_factory=dict)
    tag: str = ""
    """Name of the sweep point; empty where nothing is swept."""

    run_id: str
    status: Status
    """Status of the run; `failed` if a rank of a completed one has recorded no step."""

    reasons: tuple[str, ...] = ()

    folder: str
    """Folder of the artifacts, with one for each rank, which TensorBoard can open."""

    events: str = ""
    """The scalars of steps as event files of TensorBoard: their folder, or why there are none."""

    answer: str
    """What to look at first."""

    findings: tuple[Finding, ...] = ()
    """All that was found, the `answer` first."""

    ranks: tuple[RankProfile, ...] = ()


class ProfileReport(Document):
    """What `accel-bench profile` prints."""

    profiles: tuple[StackProfile, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where every run has completed and all its ranks have recorded steps, else 1."""
        complete = (
            one.status.completed and one.ranks and all(rank.steps for rank in one.ranks)
            for one in self.profiles
        )
        return int(not all(complete))


def read_profile(folder: Path) -> RankProfile | None:
    """Return the profile that lies in a rank's folder; None where there is none.

    Raises AccelBenchError for one that this version cannot read.
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
