"""Compile for compute capability 9.0, without a GPU, the Triton kernels that the plugin launches.

The plugin's own wrappers are called with the shapes of the scenarios, so that kernels get the
arguments that they get there; a kernel is compiled to machine code in place of being launched.
Prints one JSON document. A program of its own: Triton believes that a GPU is there.
"""

import contextlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

HOPPER = GPUTarget("cuda", 90, 32)
DTYPE = torch.bfloat16

ROWS = 16
"""Number of tokens, in kernels for which it only determines the grid."""

HEADS = ((32, 32, 128), (32, 8, 128))
"""Numbers of query and key heads, and head sizes: Llama 2 7B; Mistral 7B and Llama 3 8B."""

USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


class Hopper:
    """Answers to Triton's queries of a GPU before compilation."""

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    @staticmethod
    def is_active() -> bool:
        return True


class Recorder:
    """Compiles kernels in place of launching them, and records the resources they need."""

    def __init__(self) -> None:
        self.kernels: list[dict[str, Any]] = []
        self.failed: dict[str, str] = {}
        self._launch = JITFunction.run
        self._seen: set[str] = set()
        self._case = ""

    def install(self) -> None:
        """Compile for Hopper from now on."""
        driver.set_active(Hopper())
        JITFunction.run = lambda kernel, *args, **options: self.compile(kernel, args, options)

    def compile(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Compile a kernel with the arguments of a launch."""
        compiled = self._launch(kernel, *args, **{**options, "warmup": True})
        if compiled.hash not in self._seen:
            self._seen.add(compiled.hash)
            found = {"name": kernel.fn.__name__, "case": self._case}
            self.kernels.append({**found, **needs_of(compiled)})
        return compiled

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Record exceptions of the block under the name of a part."""
        self._case = name
        try:
            yield
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"


def needs_of(compiled: Any) -> dict[str, Any]:
    """Return threads, registers, shared bytes of a compiled kernel, and whether it uses float64."""
    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(program), "-res-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = USAGE.search(printed)
    assert usage is not None, printed
    return {
        "threads": 32 * compiled.metadata.num_warps,
        "registers": int(usage[1]),
        "stack_bytes": int(usage[2]),
        "shared_bytes": compiled.metadata.shared,
        "double": ".f64" in compiled.asm["ptx"],
    }


def tensor(*shape: int, trained: bool = True, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    """Return a tensor in the form of an operation's output, since some kernels overwrite inputs."""
    made = torch.zeros(shape, dtype=dtype)
    return made.requires_grad_() * 1 if trained else made


def take(*outputs: torch.Tensor) -> None:
    """Take the backward pass of outputs."""
    sum(one.float().sum() for one in outputs).backward()


def norms(record: Recorder) -> None:
    """Norms of hidden states and of heads, with weights that train and that do not."""
    from accel_bench_fused_kernels.impl.liger_kernels import norm_forward

    kinds = {"llama": (0.0, False, False), "gemma": (1.0, True, False), "shared": (1.0, True, True)}
    for name, kind in kinds.items():
        for trained in (True, False):
            with record.case(f"rms_norm {name} {trained}"):
                weight = torch.zeros(4096, dtype=DTYPE, requires_grad=trained)
                norm = SimpleNamespace(weight=weight, eps=1e-5)
                take(norm_forward(*kind)(norm, tensor(2, ROWS, 4096)))
    with record.case("rms_norm of heads"):
        weight = torch.zeros(128, dtype=DTYPE, requires_grad=True)
        norm = SimpleNamespace(weight=weight, eps=1e-5)
        take(norm_forward(*kinds["llama"])(norm, tensor(1, 4096, 32, 128)))
    with record.case("layer_norm"):
        from accel_bench_fused_kernels.impl.executors import by_liger

        parts = (torch.zeros(768, dtype=DTYPE, requires_grad=True) for _ in range(2))
        norm = SimpleNamespace(**dict(zip(("weight", "bias"), parts, strict=True)), eps=1e-5)
        take(by_liger("layer_norm", norm)(tensor(ROWS, 768)))


def rotations(record: Recorder) -> None:
    """Rotations of queries and keys, by angles in the model's dtype and in float32."""
    from accel_bench_fused_kernels.impl.liger_kernels import rotary

    def original(*others: Any, **options: Any) -> Any:
        raise AssertionError("the plugin's wrapper left the kernel out")

    for queries, keys, size in HEADS:
        for dtype in (DTYPE, torch.float32):
            with record.case(f"rope {queries}/{keys} {dtype}"):
                heads = (tensor(1, ROWS, one, size).transpose(1, 2) for one in (queries, keys))
                angles = tensor(1, ROWS, size, trained=False, dtype=dtype)
                take(*rotary(original)(*heads, angles, angles))


def gates(record: Recorder) -> None:
    """Gated MLPs of 7B and 8B models, and gates of experts."""
    from accel_bench_fused_kernels.impl.liger_kernels import MLPS, silu_gate

    for width in (11008, 14336):
        for name, forward in MLPS.items():
            with record.case(f"{name} {width}"):
                gate, up = tensor(ROWS, width), tensor(ROWS, width)
                mlp = SimpleNamespace(
                    gate_proj=lambda x, gate=gate: gate,
                    up_proj=lambda x, up=up: up,
                    down_proj=lambda x: x,
                )
                take(forward(mlp, None))
        with record.case(f"gate {width}"):
            take(silu_gate(None, tensor(ROWS, 2 * width)))


def losses(record: Recorder) -> None:
    """Losses over the vocabularies of Llama 2 and 3, with heads that train and that do not."""
    from accel_bench_fused_kernels.impl import liger_kernels

    for words in (32000, 128256):
        target = torch.zeros(ROWS, dtype=torch.long)
        for reduction in ("sum", "mean"):
            plain = {"ignore_index": -100, "reduction": reduction}
            with record.case(f"cross_entropy {words} {reduction}"):
                # Divided, as by the number of items: the gradient that comes back is not one.
                take(liger_kernels.cross_entropy(tensor(ROWS, words), target, **plain) / 3)
            for trained, softcap, chunk in ((True, None, 1), (False, 30.0, 8)):
                with record.case(f"linear_cross_entropy {words} {reduction} {trained}"):
                    weight = torch.zeros(words, 64, dtype=DTYPE, requires_grad=trained)
                    more = {"softcap": softcap, "chunk_mem_const": chunk}
                    head = SimpleNamespace(weight=weight, bias=None)
                    hidden = tensor(ROWS, 64)
                    fused = liger_kernels.linear_cross_entropy
                    take(fused(hidden, head, target, **plain, **more) / 3)


def patched(record: Recorder) -> None:
    """A small llama as the plugin `liger` patches it, by Liger's own defaults."""
    from accel_bench_fused_kernels.impl.liger_patch import LigerPatch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000}
    with record.case("liger"):
        config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
        model = LlamaForCausalLM(config).to(DTYPE).train()
        LigerPatch(model).apply({})
        tokens = torch.zeros((2, ROWS), dtype=torch.long)
        take(model(input_ids=tokens, labels=tokens).loss)


def packed(record: Recorder) -> None:
    """Layers of GPTQModel of every width, at the sizes of a 7B and an 8B model."""
    from accel_bench_fused_kernels.impl.lora_bases import TritonPackedBase

    torch.cuda.device = contextlib.nullcontext  # It is entered around a launch.
    for bits in (2, 4, 8):
        for inputs, outputs in ((4096, 4096), (4096, 14336), (14336, 4096)):
            with record.case(f"gptq {bits} {inputs}x{outputs}"):
                groups, a_word = inputs // 128, 32 // bits
                layer = SimpleNamespace(
                    bits=bits,
                    qweight=torch.zeros(inputs // a_word, outputs, dtype=torch.int32),
                    scales=torch.zeros(groups, outputs, dtype=torch.float16),
                    qzeros=torch.zeros(groups, outputs // a_word, dtype=torch.int32),
                    g_idx=torch.zeros(inputs, dtype=torch.int32),
                )
                TritonPackedBase(layer).dequantize(DTYPE)


def main() -> None:
    """Compile everything, and print compiled kernels and failures."""
    record = Recorder()
    record.install()
    for part in (norms, rotations, gates, losses, patched):
        part(record)
    if find_spec("gptqmodel") is not None:
        packed(record)
    print(json.dumps({"kernels": record.kernels, "failed": record.failed}))


if __name__ == "__main__":
    main()
