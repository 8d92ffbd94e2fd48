"""Functions that a judged file must define, and the loading and checking of such files."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import symtable
import sys
from pathlib import Path
from types import ModuleType

from accel_bench.errors import ScenarioError

REFERENCE = ("make_model", "make_batch", "make_optimizer", "step")
CANDIDATE = ("step",)
"""Functions that a file must define; a candidate may define `prepare` too."""


def load_steps(path: str, functions: tuple[str, ...], shared: bool = False) -> ModuleType:
    """Import a file by its path, and return its module.

    If `shared`, files that are loaded later can import the module by name. Raises ScenarioError if
    one of `functions` is missing.
    """
    specification = importlib.util.spec_from_file_location(Path(path).stem, path)
    if specification is None or specification.loader is None:
        raise ScenarioError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(specification)
    if shared:
        sys.modules.setdefault(specification.name, module)
    specification.loader.exec_module(module)
    if missing := [name for name in functions if not callable(getattr(module, name, None))]:
        raise ScenarioError(f"{path} defines no function {' and no '.join(missing)}")
    return module


def check_file(path: Path, functions: tuple[str, ...]) -> None:
    """Check without running a file that it defines `functions`. Raises ScenarioError if one is
    missing.

    A file with `import *` is not checked, since the imported names are unknown.
    """
    if not path.is_file():
        raise ScenarioError(f"{path} is no file")
    try:
        source = path.read_text(encoding="utf8")
        tree, table = ast.parse(source), symtable.symtable(source, str(path), "exec")
    except (SyntaxError, ValueError) as error:
        raise ScenarioError(f"{path} is no Python file: {error}") from None
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    if any(name.name == "*" for node in imports for name in node.names):
        return
    symbols = table.get_symbols()
    bound = {
        symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()
    }
    if missing := [name for name in functions if name not in bound]:
        raise ScenarioError(f"{path} defines no function {' and no '.join(missing)}")


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal. Raises ScenarioError if it cannot be
    read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ScenarioError(f"{path} cannot be read: {error.strerror}") from error
