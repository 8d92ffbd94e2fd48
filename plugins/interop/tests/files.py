"""Small files in other programs' published formats, with figures of published runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TRAINER = {
    "train_runtime": 143.6704,
    "train_samples_per_second": 0.835,
    "train_steps_per_second": 0.209,
    "train_tokens_per_second": 3421.164,
    "train_loss": 1.292790667215983,
    "init_mem_cpu_alloc_delta": 8192,
    "init_mem_gpu_alloc_delta": 0,
    "init_mem_cpu_peaked_delta": 0,
    "init_mem_gpu_peaked_delta": 0,
    "train_mem_cpu_alloc_delta": 531410944,
    "train_mem_gpu_alloc_delta": 126487040,
    "train_mem_cpu_peaked_delta": 0,
    "train_mem_gpu_peaked_delta": 11016635392,
    "before_init_mem_cpu": 5831098368,
    "before_init_mem_gpu": 4747206656,
    "epoch": 0.04,
}
"""Example from the page of the benchmark utility."""

STATE = {
    "epoch": 0.04,
    "global_step": 20,
    "max_steps": 20,
    "train_batch_size": 4,
    "log_history": [
        {"epoch": 0.02, "learning_rate": 2e-4, "loss": 1.4, "step": 10},
        {"epoch": 0.04, "learning_rate": 1e-4, "loss": 1.2, "step": 20},
        {"epoch": 0.04, "step": 20, "total_flos": 2.5e15, "train_loss": 1.3, "train_runtime": 60.0},
    ],
}

CSV = """\
acceleration_framework_config_file,epoch,fp16,framework_config,index,learning_rate,lora_alpha,\
lora_dropout,model_name_or_path,num_gpus,nvidia_mem_reserved,peak_torch_mem_alloc_in_bytes,\
peft_method,per_device_train_batch_size,r,target_modules,torch_mem_alloc_in_bytes,train_loss,\
train_runtime,train_samples_per_second,train_steps_per_second,train_tokens_per_second
,0.04,,none,1,2e-5,,,mistralai/Mistral-7B-v0.1,2,44706.0,36762859520.0,,2,,,29521119232.0,0.897,\
91.086,1.317,0.329,2698.11
,,,none,4,2e-5,,,mistralai/Mixtral-8x7B-Instruct-v0.1,1,81043.0,,,4,,,,,,,,
x.yaml,0.04,True,accelerated-peft-autogptq,49,2e-4,16,0.0,TheBloke/Mistral-7B-v0.1-GPTQ,2,17198.0,\
9952175616.0,lora,2,16,q_proj k_proj v_proj o_proj,3005709312.0,1.17,87.4109,1.373,0.343,2811.548
,,,moe,5,2e-5,,,ibm/PowerMoE-3b,1,3.0,,,8,,,,,,,,
"""
"""Two completed runs and two blank lines of published references."""

OPTIMUM: dict[str, Any] = {
    "config": {
        "name": "bert-training",
        "backend": {"model": "gpt2", "device": "cuda", "torch_dtype": "bfloat16"},
        "scenario": {
            "name": "training",
            "max_steps": 140,
            "warmup_steps": 40,
            "dataset_shapes": {"dataset_size": 500, "sequence_length": 256},
            "training_arguments": {
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 3,
            },
        },
        "launcher": {"name": "torchrun", "nproc_per_node": 2},
        "environment": {"cpu": "a CPU", "gpu": ["NVIDIA A10G"]},
    },
    "report": {
        "overall": {"latency": None, "throughput": None},
        "warmup": {"latency": None, "throughput": None},
        "train": {
            "memory": {"unit": "MB", "max_ram": 1000.0, "max_allocated": 2000.5},
            "latency": {
                "unit": "s",
                "values": [0.5, 0.5],
                "count": 2,
                "total": 1.0,
                "mean": 0.5,
                "p50": 0.5,
                "p90": 0.5,
                "p95": 0.5,
                "p99": 0.5,
                "stdev": 0.0,
                "stdev_": 0.0,
            },
            "throughput": {"unit": "samples/s", "value": 1200.0},
            "energy": None,
            "efficiency": None,
        },
    },
}
"""Report of 100 steps x 2 samples x 3 accumulated / 0.5 s, a hundred times one process's."""

PYTEST: dict[str, Any] = {
    "machine_info": {
        "node": "bench-2",
        "system": "Linux",
        "cpu": {"brand_raw": "a fast CPU"},
    },
    "commit_info": {"id": "0123abcd", "dirty": False},
    "benchmarks": [
        {
            "group": "gpt2",
            "name": "test_block[inductor]",
            "fullname": "tests/test_block.py::test_block[inductor]",
            "params": {"executor": "inductor"},
            "param": "inductor",
            "extra_info": {},
            "options": {},
            "stats": {
                "min": 0.001,
                "max": 0.003,
                "mean": 0.002,
                "stddev": 0.001,
                "rounds": 3,
                "median": 0.002,
                "iqr": 0.001,
                "ops": 500.0,
                "total": 0.006,
                "data": [0.001, 0.002, 0.003],
                "iterations": 10,
            },
        }
    ],
    "datetime": "2025-03-02T12:34:56.789000+00:00",
    "version": "5.3.1",
}


def event(key: str, value: Any, time_ms: int, **metadata: Any) -> str:
    """A line of MLPerf's log, as its library prints it."""
    data = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 1, **metadata},
    }
    return f":::MLLOG {json.dumps(data)}"


MLLOG = "\n".join(
    [
        "an ordinary line",
        event("submission_benchmark", "llama2_70b_lora", 1_700_000_000_000),
        event("submission_org", "SomeOrg", 1_700_000_000_000),
        event("global_batch_size", 8, 1_700_000_000_000),
        event("max_sequence_length", 8192, 1_700_000_000_000),
        event("opt_base_learning_rate", 4e-4, 1_700_000_000_000),
        event("init_start", None, 1_700_000_000_000),
        event("init_stop", None, 1_700_000_030_000),
        event("run_start", None, 1_700_000_030_000),
        "0: " + event("train_loss", 1.4, 1_700_000_060_000, samples_count=8),
        event("tracked_stats", {"throughput": 12.5}, 1_700_000_061_000, step=1),
        event("train_loss", 1.2, 1_700_000_090_000, samples_count=16),
        event("eval_accuracy", 0.92, 1_700_000_100_000, samples_count=16),
        event("run_stop", None, 1_700_000_130_000, status="success"),
    ]
)

IPFS: dict[str, Any] = {
    "timestamp": "2025-03-02T12:34:56.789Z",
    "system_info": {"platform": "Linux-5.15", "processor": "Intel i9", "cuda_available": True},
    "benchmarks": {
        "embedding": {
            "bert-base-uncased": {
                "cuda": {
                    "status": "completed",
                    "model_load_time": 2.34,
                    "training_results": {
                        "batch_1_seq_32_lr_1e-05_opt_adam_accum_1": {
                            "status": "completed",
                            "batch_size": 1,
                            "gradient_accumulation_steps": 1,
                            "effective_batch_size": 1,
                            "training_time": {"min": 0.0234, "max": 0.0287, "mean": 0.0256},
                            "loss": {"min": 2.3456, "max": 1.2345, "mean": 1.7890},
                            "memory_usage": {"mean": 1234.5, "max": 1345.6},
                            "throughput": 39.06,
                            "loss_convergence_rate": -0.0234,
                            "mixed_precision": True,
                            "distributed": False,
                        },
                        "batch_64_seq_256_lr_1e-05_opt_adam_accum_1": {
                            "status": "failed",
                            "error": "CUDA out of memory. Tried to allocate 2 GiB",
                        },
                    },
                    "performance_summary": {"training_time": {"min": 0.0234}},
                },
                "mps": {"status": "failed"},
            }
        }
    },
}


def write(folder: Path, name: str, content: str | dict[str, Any]) -> Path:
    """Write one file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
