"""A bare loop: `bare.py STEPS BATCH ACCUMULATION [FAULT] [SLEEP]`, with faults to be found."""

import sys
import time

import torch
from works import make_model, make_samples

steps, batch, accumulation = map(int, sys.argv[1:4])
fault = sys.argv[4] if len(sys.argv) > 4 else ""
sleep = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
torch.set_num_threads(1)
batch //= 2 if fault == "halved" else 1
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(make_samples(steps * batch * accumulation), batch)
for number, inputs in enumerate(loader, 1):
    (model(**inputs).loss / accumulation).backward()
    if number % accumulation == 0:
        if fault != "skipped" or number // accumulation != 5:
            optimizer.step()
        optimizer.zero_grad()
        time.sleep(sleep)
