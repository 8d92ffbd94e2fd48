"""Attends to the last eight tokens alone."""

import reference
import torch


def attend(self, hidden):
    query, key, value = self.heads(hidden)
    near = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril().triu(-7)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, near)
    return mixed.transpose(1, 2).reshape(hidden.shape)


def prepare(model, optimizer):
    reference.Block.attend = attend
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)
