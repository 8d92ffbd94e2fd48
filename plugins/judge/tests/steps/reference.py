"""A small transformer, whose step the tests' candidates rewrite."""

import torch
from torch import nn
from torch.nn import functional

WORDS, WIDTH, LENGTH, ROWS, HEADS, RATE = 64, 32, 16, 4, 2, 1e-3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden):
        hidden = hidden + self.out(self.attend(self.attention_norm(hidden)))
        return hidden + self.down(functional.gelu(self.up(self.feed_norm(hidden))))

    def heads(self, hidden):
        rows, length, _ = hidden.shape
        parts = self.qkv(hidden).chunk(3, -1)
        return [one.view(rows, length, HEADS, -1).transpose(1, 2) for one in parts]

    def attend(self, hidden):
        query, key, value = self.heads(hidden)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
        return mixed.transpose(1, 2).reshape(hidden.shape)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def body(self, words):
        hidden = self.embedding(words)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def forward(self, words):
        return self.head(self.body(words))


def make_model():
    return Model()


def make_batch(generator):
    words = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=generator)
    return {"words": words[:, :-1], "labels": words[:, 1:]}


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1, foreach=False)


def loss_of(logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def step(model, optimizer, batch):
    return update(optimizer, loss_of(model(batch["words"]), batch["labels"]))
