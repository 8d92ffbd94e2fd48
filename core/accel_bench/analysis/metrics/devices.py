"""How many devices a run really used, by what its ranks say of theirs."""

from __future__ import annotations

from accel_bench.result import RankResult, Result


def devices_used(run: Result | None) -> int | None:
    """Count distinct devices; ranks on a CPU each count, since they share it by threads."""
    if run is None or not all(rank.device for rank in run.ranks):
        return None
    return len({_device(rank) for rank in run.ranks})


def _device(rank: RankResult) -> tuple[object, ...]:
    """What tells one rank's device from another's."""
    device = rank.device
    if device.get("type") == "cpu":
        return ("cpu", rank.rank)
    return (device.get("uuid") or (device.get("name"), device.get("index")),)
