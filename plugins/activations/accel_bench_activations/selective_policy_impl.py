"""Policy of selective checkpointing: which operations' outputs are kept, and their number."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from accel_bench.errors import PluginError, did_you_mean
from accel_bench_activations.activations import GROUPS


class SelectivePolicy:
    """Policy function that torch calls for each operation of a checkpointed block."""

    def __init__(self, keep: tuple[str, ...]) -> None:
        """Find the operations whose outputs are kept. Raises PluginError for an unknown one.

        `keep` has names of groups in `GROUPS`, and names of torch operations.
        """
        # What this torch, or what is installed, does not have is left out.
        groups = {name: set(filter(None, map(_find, GROUPS[name]))) for name in GROUPS}
        self._attention = groups["attention"]
        self._matmuls = groups["matmuls"] | set(flop_registry) - self._attention
        self._kept = {
            operation for n in keep for operation in (groups[n] if n in groups else {_operation(n)})
        }
        self.counting = True
        self.kept: Counter[Any] = Counter()
        self.again: Counter[Any] = Counter()
        self.kept_bytes = 0
        self.shows_outputs = True

    def __call__(self, context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        """Return what torch is to do with an operation's output: save it, or recompute it.

        Operations that draw random numbers are always recomputed, so that later operations draw the
        same numbers as in the forward pass.
        """
        name = getattr(operation, "overloadpacket", operation)
        keeps = name in self._kept and not _draws(operation, args, kwargs)
        # Before torch 2.13 the second computation calls this as well, and outputs are not shown.
        if self.counting and not context.is_recompute:
            (self.kept if keeps else self.again)[name] += 1
            self.shows_outputs = hasattr(context, "op_output")
            self.kept_bytes += _bytes(context.op_output) if keeps and self.shows_outputs else 0
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    def recomputes(self, matmuls: int, passes: int) -> tuple[bool | None, bool | None]:
        """Return whether a block recomputes its matmuls, and whether it recomputes its attention.

        `matmuls` is the number of matmuls in one block's forward pass, `passes` the number of
        counted passes. Each of the two is True if all are recomputed, False if none is, and None if
        the counts do not tell: custom kernels hide matmuls from torch, so every matmul must have
        been counted. Attention without an operation of its own consists of two more matmuls.
        """
        if not passes:
            return None, None
        kept, again = (_among(counts, self._attention) for counts in (self.kept, self.again))
        of_its_own = bool(kept or again)
        needed = (matmuls + (0 if of_its_own else 2)) * passes
        matrices = _verdict(
            _among(self.kept, self._matmuls), _among(self.again, self._matmuls), needed
        )
        return matrices, _verdict(kept, again, passes) if of_its_own else matrices

    def evidence(self, passes: int) -> dict[str, Any]:
        """Return JSON evidence of one forward pass: calls kept and recomputed, and kept bytes.

        `passes` is the number of counted passes. If it is 0, as for compiled blocks, the evidence
        has only the names of kept operations.
        """
        if not passes:
            return {"kept": sorted(map(str, self.kept)), "recomputed": None, "kept_bytes": None}
        return {
            "kept": {str(operation): count / passes for operation, count in self.kept.items()},
            "recomputed": sum(self.again.values()) / passes,
            "kept_bytes": self.kept_bytes // passes if self.shows_outputs else None,
        }


def _verdict(kept: int, again: int, needed: int) -> bool | None:
    """Return True if all `needed` calls are recomputed, False if all are kept, None otherwise.

    `kept` is the number of calls whose output was kept, and `again` of those recomputed.
    """
    if again == 0 and kept >= needed:
        return False
    return True if kept == 0 and again >= needed else None


def _among(counts: Counter[Any], operations: set[Any]) -> int:
    return sum(count for operation, count in counts.items() if operation in operations)


def _operation(name: str) -> Any:
    if (operation := _find(name)) is None:
        near = did_you_mean(
            name, [*GROUPS, *(known for group in GROUPS.values() for known in group)]
        )
        raise PluginError(f"activation-checkpointing: keep: torch has no operation {name!r}{near}")
    return operation


def _find(name: str) -> Any:
    """Return torch's operation for a name such as `aten.silu`, or None if there is none."""
    namespace, _, operation = name.partition(".")
    try:
        return getattr(getattr(torch.ops, namespace), operation) if operation else None
    except (AttributeError, RuntimeError):
        return None


def _draws(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call of a torch operation with these arguments draws random numbers.

    The argument `dropout_p` tells, or torch's tag of the operation if it has no such argument.
    """
    schema = getattr(operation, "_schema", None)
    places = {a.name: number for number, a in enumerate(schema.arguments)} if schema else {}
    if "dropout_p" in places:
        place = places["dropout_p"]
        return bool(args[place] if place < len(args) else kwargs.get("dropout_p", 0.0))
    return torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ())


def _bytes(output: Any) -> int:
    """Return the bytes of all tensors in an output; 0 for a compiler's symbolic tensors."""
    parts = output if isinstance(output, (tuple, list)) else (output,)
    return sum(p.nbytes for p in parts if type(p) is torch.Tensor)
