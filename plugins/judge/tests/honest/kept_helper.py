"""A process that was started before, and has nothing to do, as a compiler's."""

import subprocess
import sys

import reference


def prepare(model, optimizer):
    subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)
