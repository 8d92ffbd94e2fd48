"""HF Trainer: `hf_trainer.py STEPS BATCH ACCUMULATION FOLDER`."""

import sys

from transformers import Trainer, TrainingArguments
from works import make_model, make_samples

steps, batch, accumulation = map(int, sys.argv[1:4])
arguments = TrainingArguments(
    sys.argv[4],
    max_steps=steps,
    per_device_train_batch_size=batch,
    gradient_accumulation_steps=accumulation,
    eval_strategy="steps",
    eval_steps=4,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
samples = make_samples(48)
Trainer(model=make_model(), args=arguments, train_dataset=samples, eval_dataset=samples[:8]).train()
