"""TRL's DPOTrainer: `dpo.py STEPS BATCH ACCUMULATION FOLDER`."""

import sys

from datasets import Dataset
from trl import DPOConfig, DPOTrainer
from works import make_model, make_text, make_tokenizer

steps, batch, accumulation = map(int, sys.argv[1:4])
arguments = DPOConfig(
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
words = make_text(48)
pairs = {"prompt": words, "chosen": [f" {w}" for w in words[::-1]], "rejected": [" w5 w6"] * 48}
DPOTrainer(
    model=make_model(),
    ref_model=make_model(),
    args=arguments,
    train_dataset=Dataset.from_dict(pairs),
    processing_class=make_tokenizer(),
).train()
