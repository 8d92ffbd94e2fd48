"""Sites of operations: the module and source line that ran each operation.

The site of a backward operation is the site of its forward operation.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import accel_bench
from accel_bench.engine import FOLLOWING, PhaseName
from accel_bench_profile.ledger.schema import Phase, Site

CALL = torch.nn.Module._call_impl.__code__
"""Code object of every module call, whose `self` is the module."""

BACKWARD = torch.autograd.graph._engine_run_backward.__code__
"""Code object that starts a backward pass; the frames that it calls are autograd's."""

LONGEST_CODE = 160
"""Maximum characters of a stored source line."""

HERE = Path(__file__).parent
WORKER = Path(accel_bench.__file__).with_name("worker")


class SourceLine(NamedTuple):
    """A source line, with the module for which it ran."""

    module: str
    file: str
    line: int
    function: str


NOWHERE = SourceLine("", "", 0, "")


class Sites:
    """Locator of the operation that runs now in a step of one model: module and source line."""

    def __init__(self, model: Any) -> None:
        modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
        self._modules = {id(module): name for name, module in modules}
        self._owners = {
            id(parameter): name
            for name, module in (model.named_modules() if self._modules else ())
            for parameter in module.parameters(recurse=False)
        }
        self._nodes: dict[int, SourceLine] = {}
        self._known: dict[tuple[Phase, SourceLine], Site] = {}
        self.phase: Phase = "data"

    def mark(self, ended: PhaseName) -> None:
        """Switch to the phase of the step that follows the phase `ended`."""
        self.phase = FOLLOWING.get(ended, self.phase)

    def here(self) -> Site:
        """Return the module and source line of the operation that torch currently dispatches."""
        place, in_forward = self._walk(sys._getframe(1))
        backward = torch._C._current_graph_task_id() != -1
        if not backward:
            # The node of this operation was the last to be made; later ones without a node share
            # its number.
            self._nodes.setdefault(torch.autograd._get_sequence_nr() - 1, place)
        elif not in_forward:
            place = self._of_node(place)
        return self.site(place, "backward" if backward else self.phase)

    def site(self, place: SourceLine, phase: Phase) -> Site:
        """Return the ledger's site for the source line `place` in a phase of the step."""
        key = (phase, place)
        if key not in self._known:
            self._known[key] = Site(
                phase=phase,
                module=place.module,
                file=shown(place.file),
                line=place.line,
                function=place.function,
                code=linecache.getline(place.file, place.line).strip()[:LONGEST_CODE],
            )
        return self._known[key]

    def _walk(self, frame: FrameType | None) -> tuple[SourceLine, bool]:
        """Return the innermost source line outside of torch, with the model's innermost module.

        The search goes outwards from `frame`. The second result is False if a backward pass runs
        and the line is only the call that started it.
        """
        module: str | None = None
        line = NOWHERE
        while frame is not None and (module is None or line is NOWHERE):
            code = frame.f_code
            if code is BACKWARD:
                return self._ended_in_backward(line, module, frame)
            users = is_users_file(code.co_filename)
            if module is None and (code is CALL or users):
                module = self._module_of(frame)
            if line is NOWHERE and users:
                line = SourceLine("", code.co_filename, frame.f_lineno, code.co_name)
            frame = frame.f_back
        return line._replace(module=module or ""), True

    def _module_of(self, frame: FrameType) -> str | None:
        """Return the name of the module whose method a frame executes; None for other functions.

        A checkpointed module that is recomputed may have a frame of its `forward`, but none of its
        call.
        """
        if frame.f_code.co_varnames[:1] != ("self",):
            return None
        return self._modules.get(id(frame.f_locals.get("self")))

    def _ended_in_backward(
        self, line: SourceLine, module: str | None, frame: FrameType
    ) -> tuple[SourceLine, bool]:
        """Return the source line of an operation whose search outwards reached a backward pass.

        If the search has found `line`, which is then in a Python backward function, the result is
        this line in `module`, and True. Else it is the line that called the backward pass, and
        False. `frame` starts the backward pass.
        """
        if line is not NOWHERE:
            own = module if module is not None else self._of_node(NOWHERE).module
            return line._replace(module=own), True
        return self._walk(frame.f_back)[0], False

    def _of_node(self, caller: SourceLine) -> SourceLine:
        """Return the line of the current autograd node's forward operation, or else `caller`."""
        node = torch._C._current_autograd_node()
        if node is None:
            return caller
        line = self._nodes.get(node._sequence_nr())
        if line is not None:
            return line
        parameter = getattr(node, "variable", None)
        return caller._replace(module=self._owners.get(id(parameter), caller.module))


@cache
def is_users_file(file: str) -> bool:
    """Return whether a file is outside of torch, Python's library, and accel-bench's worker."""
    if file.startswith("<") or "torchinductor" in file:
        return False
    packages = f"{os.sep}site-packages{os.sep}"
    library = file.startswith(sysconfig.get_path("stdlib")) and packages not in file
    own = tuple(f"{folder}{os.sep}" for folder in (HERE, WORKER, Path(torch.__file__).parent))
    return not library and not file.startswith(own)


@cache
def shown(file: str) -> str:
    """Return a source file's path relative to its folder in `sys.path`, else only its name."""
    folders = (folder for folder in sys.path if folder and file.startswith(folder + os.sep))
    longest = max(folders, key=len, default="")
    return file[len(longest) + 1 :] if longest else os.path.basename(file)
