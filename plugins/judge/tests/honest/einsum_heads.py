"""Attention by einsum, heads in the last place but one."""

import reference
import torch


def attend(self, hidden):
    query, key, value = (one.transpose(1, 2) for one in self.heads(hidden))
    scores = torch.einsum("nqhd,nkhd->nhqk", query, key) / query.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("nhqk,nkhd->nqhd", weights, value).reshape(hidden.shape)


def prepare(model, optimizer):
    reference.Block.attend = attend
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)
