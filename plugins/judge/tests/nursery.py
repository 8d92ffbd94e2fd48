"""A process that has imported torch, and forks one of a step for each request.

    python nursery.py DESCRIPTOR

The forked process is that of `subject_impl` in all else; to import torch anew takes longer than
all steps of a test.
"""

import ctypes
import json
import os
import socket
import sys
import tempfile

import torch
import torch._dynamo  # optimizers import it at their first step
from accel_bench_judge import shared_impl, subject_impl  # noqa: F401
from accel_bench_judge.subject import PR_SET_CHILD_SUBREAPER


def main(requests):
    while message := socket.recv_fds(requests, 1 << 20, 2):
        text, descriptors, *_ = message
        if not text:
            return
        reap()
        if (pid := os.fork()) == 0:
            requests.close()
            be_born(json.loads(text), descriptors)
        for one in descriptors:
            os.close(one)
        requests.send(str(pid).encode())


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def be_born(request, descriptors):
    settings, environment = request
    os.setsid()
    os.environ.update(environment)
    tempfile.tempdir = None  # torch may have asked for it already
    os.chdir(settings["folders"][0])
    torch.manual_seed(0)
    code = 1
    try:
        channel, memory = descriptors
        subject_impl.main({**settings, "channel": channel, "memory": memory})
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    main(socket.socket(fileno=int(sys.argv[1])))
