"""The attention kernel of torch."""

import reference
import torch


def attend(self, hidden):
    query, key, value = self.heads(hidden)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return mixed.transpose(1, 2).reshape(hidden.shape)


def prepare(model, optimizer):
    reference.Block.attend = attend
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)
