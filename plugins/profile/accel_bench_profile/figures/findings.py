"""Findings of a profile on all ranks, by cost, and the main finding as a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accel_bench.analysis.wording import count, milliseconds, percent
from accel_bench_profile.figures.modules import OUTSIDE
from accel_bench_profile.figures.schema import HostReads, ModulePhase, ProfileFinding, RankProfile

LONG_GAP, LONG_COMMUNICATION, HOST_BOUND = 0.05, 0.1, 0.2
"""Minimum fractions of a step for findings on gaps, on exposed communication, and on a device that
waits for the host."""

NOTHING = "nothing was recorded"


def findings_of(profiles: Sequence[RankProfile]) -> tuple[ProfileFinding, ...]:
    """Return the findings on all ranks, first those with a known cost, the most expensive first.

    Then come ranks that wait for another, reads by the host, the longest kernel, and marks for
    Nsight.
    """
    findings = [finding for profile in profiles for finding in _of_rank(profile, len(profiles) > 1)]
    findings += _read_findings(profiles)
    findings += _communication_findings(profiles)
    findings += _marks(profiles)
    ordered = sorted(findings, key=lambda finding: -(finding.seconds or 0.0))
    kernels = [finding for finding in ordered if finding.kind == "kernels"]
    return (
        *(finding for finding in ordered if finding.kind in ("host", "communication", "launch")),
        *(finding for finding in ordered if finding.kind == "waiting"),
        # Those with a price first; sorting keeps the order of the others.
        *(finding for finding in ordered if finding.kind == "read"),
        *kernels[:1],
        *(finding for finding in findings if finding.kind == "marks"),
    )


def _marks(profiles: Sequence[RankProfile]) -> Iterator[ProfileFinding]:
    """Yield a finding on steps marked for Nsight, if every rank marked steps."""
    if profiles and all(profile.recorder == "nsight" and profile.steps for profile in profiles):
        steps = count(min(profile.steps for profile in profiles), "step")
        yield ProfileFinding(
            kind="marks", text=f"marked for Nsight: {steps} of each rank; see its report"
        )


def answer_of(findings: Sequence[ProfileFinding]) -> str:
    """Return the main finding as a sentence; the longest kernel if nothing stands out."""
    if not findings:
        return NOTHING
    first = findings[0]
    return f"nothing stands out: {first.text}" if first.kind == "kernels" else first.text


def _of_rank(profile: RankProfile, several: bool) -> Iterator[ProfileFinding]:
    step = profile.step_seconds or 0.0
    if not step:
        return
    who = f"rank {profile.rank}: " if several else ""
    yield from _host_findings(profile, step, who)
    if profile.kernels:
        yield _kernel_finding(profile, who)


def _host_findings(profile: RankProfile, step: float, who: str) -> Iterator[ProfileFinding]:
    host = profile.host
    if host is None:
        return
    what = "the device is idle" if host.measures == "device idle" else "no operation runs"
    for gap in host.gaps:
        if gap.own_seconds >= LONG_GAP * step:
            text = (
                f"{who}{place_text(gap.place)} holds up the step: {what} for "
                f"{milliseconds(gap.seconds)} ms of {milliseconds(step)}"
            )
            yield ProfileFinding(kind="host", text=text, seconds=gap.seconds)
    rest = host.seconds - sum(gap.seconds for gap in host.gaps)
    if host.measures == "device idle" and rest >= HOST_BOUND * step:
        text = (
            f"{who}the host is too slow for the device, which is idle for {percent(rest / step)} "
            "of a step in short gaps: compile, fuse, or give it more work at once"
        )
        yield ProfileFinding(kind="launch", text=text, seconds=rest)


def _read_findings(profiles: Sequence[RankProfile]) -> Iterator[ProfileFinding]:
    """Yield a finding for each module and phase with host reads of tensors, over all ranks."""
    ranks: dict[ModulePhase, list[tuple[RankProfile, HostReads]]] = {}
    for profile in profiles:
        for read in profile.host.reads if profile.host and profile.step_seconds else ():
            ranks.setdefault(read.place, []).append((profile, read))
    for reads in ranks.values():
        numbers = ", ".join(str(profile.rank) for profile, _ in reads)
        who = f"rank{'s' * (len(reads) > 1)} {numbers}: " if len(profiles) > 1 else ""
        yield _read_finding(*max(reads, key=lambda both: (both[1].seconds, both[1].calls)), who)


def _read_finding(profile: RankProfile, one: HostReads, who: str) -> ProfileFinding:
    times = "once" if one.calls == 1 else f"{one.calls:.3g} times"
    where = place_text(one.place)
    if profile.recorded == "operations":
        cost = "each makes the host wait for the device"
        if profile.device == "cpu":
            cost = f"costs nothing on this device; on a GPU {cost}"
        text = (
            f"{who}{where} reads a value of a tensor on the host (as .item() does) {times} a step: "
            f"{cost}"
        )
        return ProfileFinding(kind="read", text=text)
    text = f"{who}{where} waits for the device {times} a step, {milliseconds(one.seconds)} ms"
    priced = one.seconds >= LONG_GAP * (profile.step_seconds or 0.0)
    return ProfileFinding(kind="host" if priced else "read", text=text, seconds=one.seconds)


def _communication_findings(profiles: Sequence[RankProfile]) -> Iterator[ProfileFinding]:
    """Yield findings on communication without concurrent computation, and on ranks that wait.

    The cost is the time of such communication on the rank with the least; what other ranks have
    beyond that is waiting.
    """
    ranks = [
        profile
        for profile in profiles
        if profile.communication is not None and profile.step_seconds
    ]
    if not ranks:
        return
    last = min(ranks, key=_exposed)
    times, step = last.communication, last.step_seconds or 0.0
    if times is not None and times.exposed_share >= LONG_COMMUNICATION:
        longest = times.collectives[0]
        text = (
            f"communication that no computation hides takes {percent(times.exposed_share)} of a "
            f"step ({milliseconds(times.exposed_seconds)} ms of {milliseconds(step)}), most of it "
            f"{longest.name}, {longest.calls:.3g} a step"
        )
        yield ProfileFinding(kind="communication", text=text, seconds=times.exposed_seconds)
    first = max(ranks, key=_exposed)
    waits = _exposed(first) - _exposed(last)
    if waits >= LONG_COMMUNICATION * step:
        text = (
            f"rank {last.rank} is late: rank {first.rank} waits for it in collectives for "
            f"{milliseconds(waits)} ms of a step"
        )
        yield ProfileFinding(kind="waiting", text=text, seconds=waits)


def _exposed(profile: RankProfile) -> float:
    return profile.communication.exposed_seconds if profile.communication else 0.0


def _kernel_finding(profile: RankProfile, who: str) -> ProfileFinding:
    longest = profile.kernels[0]
    kind, seconds = next(iter(profile.kinds.items()))
    share = seconds / profile.kernel_seconds if profile.kernel_seconds else 0.0
    text = (
        f"{who}{kind} takes {percent(share)} of the time of {profile.recorded}, the "
        f"longest is {longest.name} ({milliseconds(longest.seconds)} ms in {longest.calls:.3g} "
        "calls a step)"
    )
    return ProfileFinding(kind="kernels", text=text, seconds=seconds)


def place_text(place: ModulePhase) -> str:
    """Return a module and phase as text, such as `forward of model.layers.0.mlp`."""
    if place.module == OUTSIDE:
        return f"the {place.phase} phase" if place.phase else "what follows the optimizer"
    return f"{place.phase} of {place.module}" if place.phase else place.module
