"""Plugins that step into the traps of real libraries, and the same ones avoiding them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from accel_bench import Options, Plugin, hookimpl

BITS, GROUP = 4, 32
PER_WORD = 32 // BITS


class Gptq(Plugin[Options]):
    """Packs weights, rounded to nearest, into a checkpoint of GPTQ's form, and loads that."""

    needs_adapter = True
    loss_tolerance = 2e-2
    evaluated = False

    @hookimpl
    def load_model(self, run: Any) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        from accel_bench.modeling.loading import build_config
        from accel_bench.modeling.random_weights import random_model

        config = build_config(run.scenario.model)
        plain, _ = random_model(config, torch.bfloat16, "cpu", run.scenario.train.seed)
        folder = run.folder / "packed"
        save_packed(plain, folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, device_map="cpu", dtype=torch.bfloat16, local_files_only=True
        )
        model.config.use_cache = False
        if self.evaluated:
            with torch.no_grad():
                model.eval()(input_ids=torch.zeros(1, 8, dtype=torch.long))
        return model.train()


class GptqEvaluated(Gptq):
    """The same, after one evaluation: the kernel has changed for good."""

    evaluated = True


def save_packed(model: Any, folder: Path) -> None:
    """Write a checkpoint whose decoder's linears are packed, four bits a weight."""
    import torch
    from safetensors.torch import save_file

    tensors = {}
    packed = {
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".layers." in name
    }
    for name, tensor in model.state_dict().items():
        parent, _, leaf = name.rpartition(".")
        if parent not in packed:
            tensors[name] = tensor.contiguous()
        elif leaf == "weight":
            found = pack(tensor.float())
            tensors.update({f"{parent}.{part}": value for part, value in found.items()})
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict()
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": BITS,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
        "checkpoint_format": "gptq",
    }
    (folder / "config.json").write_text(json.dumps(config, default=str))


def pack(weight: Any) -> dict[str, Any]:
    """Round a weight of shape (out, in) to 4 bits and pack it, eight to a word along the input."""
    import torch

    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, inputs // GROUP, GROUP)
    scales = groups.abs().amax(-1).clamp(min=1e-8) / 7
    codes = (groups / scales[..., None]).round().clamp(-8, 7).to(torch.int64) + 8
    words = codes.reshape(outputs, inputs // PER_WORD, PER_WORD)
    shifts = torch.arange(PER_WORD) * BITS
    zero = sum(7 << int(shift) for shift in shifts)  # This form stores the zero point less one.
    zeros = torch.full((inputs // GROUP, outputs // PER_WORD), zero, dtype=torch.int64)
    return {
        "qweight": (words << shifts).sum(-1).T.contiguous().to(torch.int32),
        "qzeros": zeros.to(torch.int32),
        "scales": scales.T.contiguous().to(torch.float16),
        "g_idx": (torch.arange(inputs) // GROUP).to(torch.int32),
    }


class Int8(Plugin[Options]):
    """torchao's int8 weights."""

    needs_adapter = True
    configuration = "Int8WeightOnlyConfig"

    @hookimpl
    def load_model(self, run: Any) -> Any:
        from torchao import quantization

        from accel_bench import load_base_model

        model = load_base_model(run)
        quantization.quantize_(model.model, getattr(quantization, self.configuration)())
        return model


class Int8Dynamic(Int8):
    """The same, with activations quantized on the way."""

    configuration = "Int8DynamicActivationInt8WeightConfig"


class Fsdp(Plugin[Options]):
    """Asks accelerate for FSDP, as `accelerate launch --use_fsdp` does, and takes what comes."""

    strategy = "FullyShardedDataParallel"

    @hookimpl
    def parallelize_model(self, run: Any) -> Any:
        from accelerate import Accelerator

        os.environ |= {"ACCELERATE_USE_FSDP": "true", "MASTER_ADDR": "localhost"}
        return Accelerator(cpu=True).prepare_model(run.model)


class Accelerate(Plugin[Options]):
    """Starts the ranks by `accelerate launch`."""

    @hookimpl
    def launch_ranks(self, job: Any) -> Any:
        entry = Path(job.folder) / "entry.py"
        entry.write_text(ENTRY)
        command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu"]
        command += ["--num_processes", str(job.world_size), str(entry), str(job.path())]
        with job.log_path(0).open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        return [Launched(process, rank) for rank in range(job.world_size)]


ENTRY = """\
import sys
from accelerate import PartialState
from accel_bench.worker.__main__ import main

state = PartialState()
main([sys.argv[1], str(state.process_index), str(state.local_process_index)])
"""


class Launched:
    """One of the ranks of a launcher that is itself one process."""

    def __init__(self, process: subprocess.Popen[bytes], rank: int) -> None:
        self.rank = rank
        self.pid = process.pid
        self._process = process

    def wait(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def poll(self) -> int | None:
        return self._process.poll()

    def dump_stack(self) -> None:
        return None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def sweep(self) -> None:
        self._process.kill()
        self._process.wait()
