"""TRL's SFTTrainer: `sft.py STEPS BATCH ACCUMULATION FOLDER`."""

import sys

from datasets import Dataset
from trl import SFTConfig, SFTTrainer
from works import make_model, make_text, make_tokenizer

steps, batch, accumulation = map(int, sys.argv[1:4])
arguments = SFTConfig(
    sys.argv[4],
    max_steps=steps,
    per_device_train_batch_size=batch,
    gradient_accumulation_steps=accumulation,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    disable_tqdm=True,
    max_length=32,
)
SFTTrainer(
    model=make_model(),
    args=arguments,
    train_dataset=Dataset.from_dict({"text": make_text(48)}),
    processing_class=make_tokenizer(),
).train()
