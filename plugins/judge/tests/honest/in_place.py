"""Residuals that are added in place."""

import reference


def forward(self, hidden):
    attended = self.out(self.attend(self.attention_norm(hidden))).add_(hidden)
    grown = reference.functional.gelu(self.up(self.feed_norm(attended)))
    return self.down(grown).add_(attended)


def prepare(model, optimizer):
    reference.Block.forward = forward
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)
