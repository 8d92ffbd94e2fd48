"""The mask is made once, as a buffer without gradient."""

import reference
import torch

FUTURE = torch.full((reference.LENGTH, reference.LENGTH), -torch.inf).triu(1)


def attend(self, hidden):
    query, key, value = self.heads(hidden)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    mixed = (scores + FUTURE).softmax(-1) @ value
    return mixed.transpose(1, 2).reshape(hidden.shape)


def prepare(model, optimizer):
    reference.Block.attend = attend
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)
