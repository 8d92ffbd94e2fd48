"""Functions that run in the environment with real trainers: `trainer_program.py NAME JSON`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

ROWS = [
    {"prompt": f"count to {n}: ", "completion": " ".join(map(str, range(n)))} for n in range(2, 30)
]


def make_model(folder: str) -> dict[str, str]:
    """Write a small llama with random weights and a tokenizer, and rows of prompts and answers."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [row["prompt"] + row["completion"] for row in ROWS]
    special = ["<eos>", "<pad>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=300, special_tokens=special)
    )
    size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=256, **size)
    model, data = Path(folder, "model"), Path(folder, "rows.jsonl")
    LlamaForCausalLM(config).save_pretrained(model)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.save_pretrained(model)
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {"model": str(model), "data": str(data)}


def build(program: str, texts: list[str]) -> list[dict[str, Any]]:
    """Return what the program's own parser reads from texts of YAML, or the error."""
    found = []
    for text in texts:
        Path("config.yaml").write_text(text)
        try:
            found.append(_plain(PARSERS[program]("config.yaml")))
        except (Exception, SystemExit) as error:
            found.append({"error": f"{type(error).__name__}: {error}"})
    return found


def check(program: str, wheel: str, settings: list[dict[str, Any]]) -> list[str]:
    """Return the error with which a program's schema, from its wheel, refuses settings; or none."""
    sys.path.insert(0, wheel)
    accept = {"axolotl": _axolotl, "llama-factory": _llama_factory}[program]()
    errors = []
    for one in settings:
        try:
            accept(one)
            errors.append("")
        except (Exception, SystemExit) as error:
            errors.append(f"{type(error).__name__}: {error}")
    return errors


def _axolotl() -> Any:
    import types

    sys.modules["addict"] = types.SimpleNamespace(Dict=dict)  # the base of what loads a file
    from axolotl.integrations.liger.args import LigerArgs
    from axolotl.utils.schemas.config import AxolotlInputConfig

    class Config(AxolotlInputConfig, LigerArgs):  # as axolotl merges the arguments of its plugins
        pass

    data = [{"path": "rows.jsonl", "ds_type": "json", "type": "completion"}]
    base = {"base_model": "org/model", "datasets": data, "learning_rate": 1e-4,
            "micro_batch_size": 1, "gradient_accumulation_steps": 1}  # fmt: skip

    def accept(settings: dict[str, Any]) -> None:
        unknown = settings.keys() - Config.model_fields.keys()
        if unknown:
            raise ValueError(f"unknown keys {sorted(unknown)}")
        adapted = {"adapter": "lora"} if "load_in_8bit" in settings else {}
        adapted |= {"rl": "dpo"} if "dpo_loss_type" in settings else {}
        found = Config(**{**base, **adapted, **settings})
        for key, value in settings.items():
            got = getattr(found, key)
            plain = isinstance(value, bool | int | float) and isinstance(got, bool | int | float)
            if plain and got != value:
                raise ValueError(f"{key} is {got!r}")

    return accept


def _llama_factory() -> Any:
    import os
    import types

    import transformers

    os.environ["DISABLE_VERSION_CHECK"] = "1"  # it wants transformers before 5.7

    sys.modules["omegaconf"] = types.SimpleNamespace(OmegaConf=None)  # reads files alone
    from llamafactory.hparams import data_args, finetuning_args, model_args, training_args

    kinds = (model_args.ModelArguments, data_args.DataArguments, training_args.TrainingArguments,
             finetuning_args.FinetuningArguments)  # fmt: skip
    parser = transformers.HfArgumentParser(kinds)
    base = {
        "model_name_or_path": "org/model",
        "dataset": "rows",
        "output_dir": "out",
        "use_cpu": True,
    }

    def accept(settings: dict[str, Any]) -> None:
        parsed = _plain(parser.parse_dict({**base, **settings}))
        for key, value in settings.items():
            if isinstance(value, bool | int | float) and parsed[key] != value:
                raise ValueError(f"{key} is {parsed[key]!r}")

    return accept


def train(program: str, file: str, **paths: str) -> dict[str, Any]:
    """Train two steps with a file, and return the losses of the steps and the configuration."""
    return TRAINERS[program](file, **paths)


def _sft(file: str) -> tuple[Any, ...]:
    from trl.scripts.sft import make_parser

    return make_parser().parse_args_and_config(["--config", file], fail_with_unknown_args=True)


def _dpo(file: str) -> tuple[Any, ...]:
    from trl.scripts.dpo import make_parser

    return make_parser().parse_args_and_config(["--config", file], fail_with_unknown_args=True)


def _trl(file: str) -> tuple[Any, ...]:
    """Parse a file of `trl dpo` if it has a setting of that command alone, else of `trl sft`."""
    import yaml

    preferring = {"beta", "loss_type", "loss_weights"} & yaml.safe_load(
        Path(file).read_text()
    ).keys()
    return _dpo(file) if preferring else _sft(file)


def _arguments(file: str) -> tuple[Any, ...]:
    from transformers import HfArgumentParser, TrainingArguments

    return HfArgumentParser(TrainingArguments).parse_yaml_file(file)


def _accelerate(file: str) -> tuple[Any, ...]:
    from accelerate.commands.config.config_args import load_config_from_file

    return (load_config_from_file(file),)


PARSERS = {"trl": _trl, "trainer": _arguments, "accelerate": _accelerate}


def _train_sft(file: str) -> dict[str, Any]:
    from trl import SFTTrainer
    from trl.scripts import sft

    losses: list[float] = []
    kept = SFTTrainer.log

    def log(self: Any, logs: dict[str, float], *rest: Any, **named: Any) -> None:
        losses.extend([logs["loss"]] if "loss" in logs else [])
        kept(self, logs, *rest, **named)

    SFTTrainer.log = log
    script, arguments, model, data = _sft(file)
    arguments.logging_steps = 1
    sft.main(script, arguments, model, data)
    return {"losses": losses, **_plain((arguments, model))}


def _train_arguments(file: str, model: str) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, Trainer

    (arguments,) = _arguments(file)
    arguments.logging_steps = 1
    rows = [{"input_ids": torch.arange(16) % 50, "labels": torch.arange(16) % 50}] * 16
    trainer = Trainer(AutoModelForCausalLM.from_pretrained(model), arguments, train_dataset=rows)
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    return {"losses": losses, **_plain((arguments,))}


def _launch(file: str, model: str) -> dict[str, Any]:
    """Train two steps of a loop that `accelerate launch` starts with a file."""
    import subprocess

    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", file]
    loop = [__file__, "loop", json.dumps({"model": model})]
    done = subprocess.run([*launch, *loop], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def loop(model: str) -> dict[str, Any]:
    """A loop of one's own, by accelerate."""
    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForCausalLM

    accelerator = Accelerator()
    loaded = AutoModelForCausalLM.from_pretrained(model)
    optimizer = torch.optim.AdamW(loaded.parameters())
    loaded, optimizer = accelerator.prepare(loaded, optimizer)
    ids, losses = torch.arange(16)[None] % 50, []
    for _ in range(2):
        loss = loaded(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    precision, device = accelerator.mixed_precision, accelerator.device.type
    return {"losses": losses, "mixed_precision": precision, "device": device}


TRAINERS = {"trl": _train_sft, "trainer": _train_arguments, "accelerate": _launch}


def _plain(parsed: tuple[Any, ...]) -> dict[str, Any]:
    """Return all fields of what a parser has returned, as JSON."""
    found: dict[str, Any] = {}
    for one in parsed:
        fields = dataclasses.fields(one) if dataclasses.is_dataclass(one) else ()
        found |= {field.name: getattr(one, field.name) for field in fields}
    return json.loads(json.dumps(found, default=str))


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
