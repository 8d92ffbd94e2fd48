"""The effective configuration of a row in a few words, beside its speed."""

from __future__ import annotations

from accel_bench.analysis.wording import count
from accel_bench.effective import EffectiveConfiguration
from accel_bench_report.page.scenario import PageRow


def configuration(row: PageRow, base: PageRow | None) -> list[tuple[str, bool]]:
    """Return what was in effect, each with whether it differs from the baseline."""
    own = _facts(row)
    other = _facts(base) if base and base is not row and base.runs.last else own
    return [(text, other.get(key) != text) for key, text in own.items() if text]


def _facts(row: PageRow) -> dict[str, str]:
    effective, run = row.summary.effective, row.runs.last
    train = run.experiment.scenario.train if run else None
    batch = ""
    if train and run:
        length = run.experiment.scenario.data.sequence_length
        times = f" x {train.gradient_accumulation}" if train.gradient_accumulation > 1 else ""
        batch = f"batch {train.micro_batch_size}{times}, up to {length} tokens"
    ranks = effective.world_size or 1
    return {
        "dtype": effective.matmul_dtype or next(iter(effective.trained_dtypes), ""),
        "weights": _weights(effective),
        "batch": batch,
        "attention": _attention(effective),
        "padding": "without padding" if effective.padding_free else "",
        "checkpointing": _checkpointing(effective),
        "compilation": _compilation(effective),
        "strategy": f"{effective.strategy} on {ranks} ranks" if ranks > 1 else "",
        "optimizer": effective.optimizer or "",
        "device": effective.device or "",
        "threads": count(effective.threads, "thread") if effective.threads else "",
    }


def _attention(effective: EffectiveConfiguration) -> str:
    """Return the attention that ran; the setting alone where no plugin may have replaced it."""
    if not effective.padding_free:
        return f"attention {effective.attention}" if effective.attention else ""
    # Sequences in one row need other kernels than those that the setting names.
    kernels = ", ".join(effective.attention_kernels or ())
    return f"attention by {kernels}" if kernels else ""


def _weights(effective: EffectiveConfiguration) -> str:
    """Return what frozen weights are stored in, where there are any."""
    name = next(iter(effective.weight_dtypes), "")
    return f"frozen {name}" if name else ""


def _checkpointing(effective: EffectiveConfiguration) -> str:
    blocks = effective.checkpointed_blocks
    if blocks and blocks.checkpointed:
        policy = f" ({blocks.policy})" if blocks.policy else ""
        return f"{blocks.checkpointed} of {blocks.blocks} blocks checkpointed{policy}"
    return "checkpointed" if effective.gradient_checkpointing else ""


def _compilation(effective: EffectiveConfiguration) -> str:
    compiled = effective.compilation
    if not compiled or not compiled.graphs:
        return "eager"
    breaks = f", {count(compiled.graph_breaks, 'break')}" if compiled.graph_breaks else ""
    return f"compiled, {count(compiled.graphs, 'graph')}{breaks}"
