"""Inference by vLLM: weights, requests, generated tokens, and its cache."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from accel_bench import Batch, Metric, Run, Stopwatch, TokenCounts, Window
from accel_bench.errors import InvalidRunError, PluginError, ScenarioError, did_you_mean
from accel_bench.modeling.contract import text_config
from accel_bench.modeling.key_value_cache import expected_numbers
from accel_bench.modeling.latencies import (
    Arrivals,
    Load,
    Served,
    latency_metrics,
    load_of_streams,
    now,
)
from accel_bench.modeling.loading import build_config, load_base_model, pretrained_source
from accel_bench.modeling.prompts import Prompts

from . import VLLMOptions

LARGEST_BLOCK = 256
"""Tokens of the largest cache block, to which the cache size is rounded up."""

FINGERPRINT = "weights_fingerprint"
"""File in the folder of random weights that contains their fingerprint."""


@dataclasses.dataclass(frozen=True)
class WeightsSource:
    """Location of the weights for vLLM: the path of a folder, or a model id of the hub."""

    path: str
    revision: str | None = None


def checkpoint_of(run: Run) -> WeightsSource:
    """Return where the scenario's weights lie: in a cache folder if generated, else as published.

    Generated weights are written at first use, and set `run.weights_fingerprint`.
    """
    use = run.scenario.model
    if use.weights != "random" and not use.overrides:
        source = pretrained_source(use, run.trust_remote_code)
        return WeightsSource(source["pretrained_model_name_or_path"], source.get("revision"))
    key = {
        "model": use.model_dump(mode="json"),
        "seed": run.scenario.train.seed,
        "device": run.device.type,
        "versions": [str(torch.__version__), transformers.__version__],
    }
    folder = run.cache("checkpoints", key, lambda empty: _write_weights(run, empty))
    run.weights_fingerprint = (folder / FINGERPRINT).read_text()
    return WeightsSource(str(folder))


def _write_weights(run: Run, folder: Path) -> None:
    model = load_base_model(run)
    model.save_pretrained(folder)
    (folder / FINGERPRINT).write_text(run.weights_fingerprint)


@dataclasses.dataclass
class Answer:
    """Times and token ids of one request, which may be unfinished."""

    served: Served
    ids: list[int] = dataclasses.field(default_factory=list)
    finished: bool = False


class VLLMEngine:
    """Engine that keeps `batch_size` requests in vLLM, or adds requests at the scenario's rate.

    A timed step ends when the next `batch_size` requests, in order of sending, are completed.
    """

    def __init__(self, run: Run, options: VLLMOptions) -> None:
        self._run, self._options = run, options
        self._asked = run.scenario.inference
        self._config = build_config(run.scenario.model, run.trust_remote_code)
        self._set_threads = torch.set_num_threads
        self._server = _start_server(run, options, self._config)
        self._prompts = Prompts(run.batches)
        self._answers: list[Answer] = []
        self._unfinished = 0
        rate, seed = self._asked.rate, self._asked.seed
        self._arrivals = None if rate is None else Arrivals(rate, seed + run.rank)
        self._began = now()
        self._left_out = 0.0
        """Seconds between timed steps, which the clock of arrivals leaves out."""

        self._window: list[Served] = []
        self._cache = _cache_of(self._server)

    def run(self, stopwatch: Stopwatch) -> None:
        """Complete batches of requests while the stopwatch runs, each as one timed step."""
        size, done = self._asked.batch_size, 0
        self._began = now()
        while stopwatch.running:
            while done + size > len(self._answers) or self._waits_for(done, done + size):
                self._admit(done + size)
                self._step()
            answered = self._answers[done : done + size]
            done += size
            ended = now()
            stopwatch.lap([_counted(request) for request in answered], 0.0)
            self._left_out += now() - ended
        self._run.answers.extend(request.ids for request in self._answers[:done])

    def close(self) -> None:
        """End vLLM, leave its process group, and undo its changes to torch."""
        from vllm.distributed import cleanup_dist_env_and_memory

        torch.set_num_threads = self._set_threads
        self._server.engine_core.shutdown()
        cleanup_dist_env_and_memory()

    def metrics(self, window: Window) -> Iterator[Metric]:
        """Yield latency and cache metrics of the requests in the measured window."""
        size, first = self._asked.batch_size, window.samples[0].step
        measured = self._answers[first * size : (first + len(window.samples)) * size]
        self._window = [request.served for request in measured]
        yield from latency_metrics(self._window, self._load(), window.seconds)
        yield Metric(
            name="kv_cache_bytes",
            value=self._cache["bytes"],
            unit="bytes",
            scope="rank",
            better="lower",
            reason=self._cache_problem(),
        )

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence of the cache and of the offered load."""
        import vllm

        load = self._load() if self._window else None
        kept = self._cache
        text = (
            f"vLLM {vllm.__version__}: a cache of {kept['blocks']:,} x {kept['block_size']} "
            f"tokens, {kept['bytes']:,} bytes"
        )
        return {
            "summary": f"{load.text}; {text}" if load else text,
            "kv_cache": {**kept, "expected": self._expected_bytes()},
            **({"load": dict(vars(load))} if load else {}),
        }

    def _waits_for(self, first: int, until: int) -> bool:
        return not all(request.finished for request in self._answers[first:until])

    def _instant(self) -> float:
        """Return the time in seconds of the clock of arrivals, which stops between timed steps."""
        return now() - self._left_out

    def _admit(self, until: int) -> None:
        """Send to vLLM the requests that have arrived, as long as fewer than `batch_size` are open.

        Without a rate, at most `until` requests are sent in total.
        """
        room = self._asked.batch_size - self._unfinished
        if self._arrivals is None:
            arrived: list[float | None] = [None] * min(room, until - len(self._answers))
        else:
            elapsed = self._instant() - self._began
            arrived = [self._began + moment for moment in self._arrivals.take(elapsed, room)]
        for prompt, arrival in zip(self._prompts.take(len(arrived)), arrived, strict=True):
            self._send(prompt.tolist(), arrival)

    def _send(self, prompt: list[int], arrival: float | None) -> None:
        number, started = len(self._answers), self._instant()
        arrivals = () if arrival is None else (arrival,)
        self._answers.append(Answer(Served(1, len(prompt), started, arrivals)))
        self._unfinished += 1
        self._server.add_request(
            str(number), {"prompt_token_ids": prompt}, _sampling(self._asked, number)
        )

    def _step(self) -> None:
        """Run one step of vLLM and collect its tokens; without requests, wait for an arrival."""
        if not self._unfinished:
            assert self._arrivals is not None
            time.sleep(self._arrivals.until_next(self._instant() - self._began))
            return
        outputs = self._server.step()
        instant = self._instant()
        for output in outputs:
            request, ids = self._answers[int(output.request_id)], output.outputs[0].token_ids
            if ids:
                request.ids += ids
                request.served.tokens.append((instant, len(ids)))
            if output.finished:
                self._finish(request)

    def _finish(self, answer: Answer) -> None:
        """Mark a request as completed. Raises InvalidRunError if its number of tokens is wrong."""
        self._unfinished -= 1
        answer.finished = True
        if len(answer.ids) != self._asked.new_tokens:
            raise InvalidRunError(
                [f"vLLM generated {len(answer.ids)} tokens, {self._asked.new_tokens} were asked"]
            )

    def _load(self) -> Load | None:
        """Return request rates and utilization in the window; None if the scenario sets no rate."""
        if self._asked.rate is None:
            return None
        return load_of_streams(self._window, self._asked.rate)

    def _expected_bytes(self) -> int | None:
        """Return the cache size in bytes by the model's configuration; None if it is unknown."""
        numbers = expected_numbers(text_config(self._config), 1, static=True)
        if numbers is None or self._options.kv_cache_dtype != "auto":
            return None
        tokens = self._cache["blocks"] * self._cache["block_size"]
        return 2 * numbers * tokens * _itemsize(self._run)

    def _cache_problem(self) -> str:
        expected = self._expected_bytes()
        if expected in (None, self._cache["bytes"]):
            return ""
        return f"the cache holds {self._cache['bytes']:,} bytes, arithmetic says {expected:,}"


def _start_server(run: Run, options: VLLMOptions, config: Any) -> Any:
    """Return vLLM's engine with the model on the run's device.

    `config` is the model's configuration. Raises ScenarioError if vLLM uses another device,
    PluginError for an unknown argument.
    """
    from vllm import EngineArgs, LLMEngine
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext

    if current_platform.device_type != run.device.type:
        raise ScenarioError(
            f"the vLLM that is installed computes on {current_platform.device_type}, the scenario "
            f"says {run.device.type}: install 'accel-bench-vllm[cuda]' or [cpu]"
        )
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in options.extra.keys() - known:
        raise PluginError(
            f"engine.extra.{name}: vLLM has no such argument{did_you_mean(name, known)}"
        )
    use, asked = run.scenario.model, run.scenario.inference
    arguments = EngineArgs(
        model=run.model.path,
        revision=run.model.revision,
        dtype=use.dtype,
        seed=run.scenario.train.seed,
        skip_tokenizer_init=True,
        generation_config="vllm",
        load_format="safetensors",  # Pickled weights may hold code.
        trust_remote_code=run.trust_remote_code,
        max_model_len=asked.prompt_tokens + asked.new_tokens,
        max_num_seqs=asked.batch_size,
        disable_log_stats=True,
        **_settings(run, options, config),
        **options.extra,
    )
    return LLMEngine.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS)


def _settings(run: Run, options: VLLMOptions, config: Any) -> dict[str, Any]:
    """Return vLLM's arguments from the options, with a cache for all requests.

    `config` is the model's configuration. Raises ScenarioError if the cache size is unknown: vLLM
    would take nearly all memory.
    """
    settings = options.model_dump(exclude={"extra"}, exclude_none=True)
    numbers = expected_numbers(text_config(config), 1, static=True)
    if options.kv_cache_memory_bytes is None:
        if numbers is None:
            raise ScenarioError(
                "how large the cache of this model is, is not known: set "
                "engine.kv_cache_memory_bytes"
            )
        asked = run.scenario.inference
        length = asked.prompt_tokens + asked.new_tokens
        blocks = (asked.batch_size + 1) * math.ceil(length / LARGEST_BLOCK)
        bytes_of_block = 2 * numbers * LARGEST_BLOCK * _itemsize(run)
        settings["kv_cache_memory_bytes"] = blocks * bytes_of_block
    return settings


def _itemsize(run: Run) -> int:
    dtype: torch.dtype = getattr(torch, run.scenario.model.dtype)
    return dtype.itemsize


def _sampling(asked: Any, number: int) -> Any:
    """Return vLLM's sampling parameters for exactly `new_tokens` tokens, without text.

    `asked` is the scenario's section `inference`, and `number` the request's number.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = asked.decoding == "sampling"
    return SamplingParams(
        max_tokens=asked.new_tokens,
        ignore_eos=True,
        temperature=1.0 if sampling else 0.0,
        seed=asked.seed + number if sampling else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _cache_of(server: Any) -> dict[str, int]:
    """Return the numbers `bytes`, `blocks` and `block_size` (in tokens) of an engine's cache."""
    (held,) = server.collective_rpc(_cache_bytes)
    settings = server.vllm_config.cache_config
    return {
        "bytes": held,
        "blocks": settings.num_gpu_blocks,
        "block_size": settings.block_size,
    }


def _cache_bytes(worker: Any) -> int:
    """Return the bytes of a vLLM worker's cache tensors; each storage counts once."""
    storages = [tensor.untyped_storage() for tensor in worker.model_runner.kv_caches]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _counted(answer: Answer) -> Batch:
    """Return the token counts of one request as a batch; vLLM adds no padding."""
    new = len(answer.ids)
    return Batch({}, 1, TokenCounts(answer.served.prompt_tokens + new, new, 0), 0)
