"""A small checkout of fms-acceleration: its documented example, and a mixture."""

from __future__ import annotations

from pathlib import Path

SCENARIOS = """\
scenarios:

  # benchmark scenario for accelerated peft using AutoGPTQ triton v2
  - name: accelerated-peft-gptq
    framework_config:
      - accelerated-peft-autogptq
    arguments:
      fp16: True
      learning_rate: 2e-4
      torch_dtype: float16
      peft_method: lora
      r: 16
      lora_alpha: 16
      lora_dropout: 0.0
      target_modules: "q_proj k_proj v_proj o_proj"
      model_name_or_path:
        - 'mistralai/Mistral-7B-v0.1'
        - 'mistralai/Mixtral-8x7B-Instruct-v0.1'
        - 'NousResearch/Llama-2-70b-hf'
  - name: mixture
    slow: True
    framework_config:
      - # without acceleration
      - moe-ep1
      - moe-padding-free
    arguments:
      learning_rate: 5e-5
      torch_dtype: bfloat16
      gradient_accumulation_steps: 16
      model_name_or_path: ['mistralai/Mixtral-8x7B-Instruct-v0.1']
"""

DEFAULTS = """\
use_flash_attn: True
response_template: "\\n### Response:"
gradient_accumulation_steps: 1
gradient_checkpointing: True
weight_decay: 0.01
warmup_steps: 10
adam_epsilon: 1e-4
max_steps: 20
"""

CONTENTS = """\
framework_configs:
  - shortname: accelerated-peft-autogptq
    plugins: [accelerated-peft]
    filename: gptq-sample-configuration.yaml
  - shortname: moe-ep1
    plugins: [accelerated-moe]
    filename: moe-sample-configuration.yaml
  - shortname: moe-padding-free
    plugins: [accelerated-moe, attention-and-distributed-packing]
    filename: moe-padding-free-sample-configuration.yaml
"""

GPTQ = """\
plugins:
  peft:
    quantization:
      auto_gptq:
        kernel: triton_v2
        from_quantized: true
"""

MOE = """\
plugins:
  training:
    moe:
      scattermoe:
        ep_degree: 1
"""

PADDING_FREE = """\
  training:
    attention:
      padding_free:
        method: huggingface
    dataloader:
      multipack:
        num_processes: 16
    moe:
      scattermoe:
        ep_degree: 8
"""


def write_folder(folder: Path, **changed: str) -> Path:
    """Write the folder; `changed` are file texts by name without suffix."""
    files = {
        "scripts/benchmarks/scenarios": SCENARIOS,
        "scripts/benchmarks/defaults": DEFAULTS,
        "sample-configurations/CONTENTS": CONTENTS,
        "sample-configurations/gptq-sample-configuration": GPTQ,
        "sample-configurations/moe-sample-configuration": MOE,
        "sample-configurations/moe-padding-free-sample-configuration": f"plugins:\n{PADDING_FREE}",
    }
    names = {name.rpartition("/")[2]: name for name in files}
    for name, text in changed.items():
        key = name.replace("_", "-")
        files[names.get(key, f"scripts/benchmarks/{key}")] = text
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
