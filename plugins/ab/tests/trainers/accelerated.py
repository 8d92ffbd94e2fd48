"""A loop of accelerate: `accelerated.py STEPS BATCH ACCUMULATION`."""

import sys

import torch
from accelerate import Accelerator
from works import make_model, make_samples

steps, batch, accumulation = map(int, sys.argv[1:4])
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(make_samples(steps * batch * accumulation), batch)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs in loader:
    with accelerator.accumulate(model):
        loss = model(**inputs).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
