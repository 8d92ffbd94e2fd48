"""Reader of prompts and answers for the data plugin `instructions`."""

from __future__ import annotations

from collections.abc import Iterator

from accel_bench_text_tasks.data.conversations_cache_impl import PromptSample
from accel_bench_text_tasks.data.documented_functions import documented_functions
from accel_bench_text_tasks.data.instructions import InstructionsOptions
from accel_bench_text_tasks.data.row_sources import (
    Row,
    messages_of,
    read_rows,
    text_of,
    with_all_parts,
)
from accel_bench_text_tasks.data.synthetic_rows import synthetic_rows


def read(options: InstructionsOptions, seed: int) -> Iterator[PromptSample]:
    """Yield prompts with their answers, read from files or generated from `seed`."""
    if options.source == "synthetic":
        for made in synthetic_rows(seed, options.maximum_samples):
            yield PromptSample(made.where, made.prompt, (made.answer,))
        return
    if options.path is None:
        for function in documented_functions(options.files()):
            yield PromptSample(function.where, function.prompt, (function.answer,))
        return
    for row in with_all_parts(read_rows(options.files(), options.fields), options.prompts):
        yield _sample(row, options)


def _sample(row: Row, options: InstructionsOptions) -> PromptSample:
    if options.messages is not None:
        return PromptSample(row[0], [], (messages_of(row, options.messages, "data.messages"),))
    named = "data.prompt, or data.messages for a list of messages"
    parts = [text_of(row, field, named) for field in options.prompts]
    prompt = "\n\n".join(part for part in parts if part)
    return PromptSample(row[0], prompt, (text_of(row, options.answer, "data.answer"),))
