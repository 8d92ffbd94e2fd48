"""Actor on a Ray node, which runs the agent that starts the node's ranks."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_bench_cluster import end_on_signals, run_agent

from accel_bench.errors import AccelBenchError

SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "RAY_", "SPT_NOENV")
"""Prefixes of variables that Ray sets in its workers, and that are removed for ranks."""

CONNECT_SECONDS = 60.0
"""Timeout in seconds of connecting to the parent."""


class Host:
    """Ray actor on one node of a session, which runs the node's agent."""

    def serve(
        self,
        parent: tuple[str, int],
        secret: str,
        ranks: dict[str, Any],
        folder: str,
        variables: Mapping[str, str],
    ) -> str:
        """Run the node's agent until the session ends; return its error, or an empty text.

        `parent` is the parent's host and port, `secret` identifies the session, `ranks` describes
        the ranks to start, and `variables` are added to the environment. `folder` is the name of
        the agent's temporary folder, which an earlier actor may have left.
        """
        # Ray starts its workers with a lower priority, and only root may raise it again.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))
        for name in [name for name in os.environ if name.startswith(SET_BY_RAY)]:
            del os.environ[name]
        os.environ.update(variables)
        end_on_signals()
        own = Path(tempfile.gettempdir(), folder)
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(mode=0o700)
        tempfile.tempdir = str(own)
        try:
            run_agent(parent, secret.encode(), ranks, CONNECT_SECONDS)
        except AccelBenchError as error:
            return str(error)
        finally:
            tempfile.tempdir = None
            shutil.rmtree(own, ignore_errors=True)
        return ""
