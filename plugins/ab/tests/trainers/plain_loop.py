"""A loop of torch alone: `plain_loop.py STEPS BATCH [FAULT]`, with faults to be found."""

import sys

import torch

steps, batch = map(int, sys.argv[1:3])
fault = sys.argv[3] if len(sys.argv) > 3 else ""
torch.set_num_threads(2 if fault == "threads" else 1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
model = torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = torch.randint(0, 8, (steps * batch, 16), generator=generator)
loader = torch.utils.data.DataLoader(rows, batch // 2 if fault == "halved" else batch)
for number, ids in zip(range(steps), loader, strict=False):
    with torch.autocast("cpu", torch.bfloat16, enabled=fault == "autocast"):
        outputs = model(ids[:, :-1]).flatten(0, 1)
    torch.nn.functional.cross_entropy(outputs.float(), ids[:, 1:].flatten()).backward()
    if fault != "skipped" or number != steps // 2:
        optimizer.step()
    optimizer.zero_grad()
