"""Thunder: refused with the reason and install command, or used and counted."""

import sys
from importlib import metadata

import pytest
import torch
from accel_bench_compile.cache import installed_version
from accel_bench_compile.thunder_backend import missing_thunder
from pydantic import ValidationError

from accel_bench.errors import PluginError
from accel_bench.testing import evidence_of

# What torch says of itself while it imports and traces is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

HERE = {"lightning-thunder": "0.2.6", "torch": torch.__version__}

FAILING = "raise AttributeError(\"type object 'Tensor' has no attribute 'align_as'\")\n"

WORKING = """\
from enum import Enum
from types import SimpleNamespace as Record

Compiler = Enum("Compiler", "THUNDER TORCH_INDUCTOR")

class ThunderCompiler:
    def __init__(self, executors=()):
        self.subgraph_infos = []

    def __call__(self, graph, inputs):
        parts = {number: Record(compiler=one) for number, one in enumerate(Compiler)}
        why = [Record(info="no such operator")]
        found = Record(submodule_to_compiled_functions=parts, split_reasons=why)
        self.subgraph_infos.append(found)
        return graph
"""
"""Names of `thunder.dynamo` without function, since it cannot be imported with torch 2.13."""


INSTALLED = {
    name: version for name in ("lightning-thunder", "torch") if (version := installed_version(name))
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution called lightning-thunder where Python finds it."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(str(folder))

    def installed(version, module, root=""):
        package = folder / "thunder"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(root, encoding="utf8")
        (package / "dynamo.py").write_text(module, encoding="utf8")
        info = folder / f"lightning_thunder-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: lightning-thunder\nVersion: {version}\n")

    yield installed
    for name in [name for name in sys.modules if name.partition(".")[0] == "thunder"]:
        del sys.modules[name]


@pytest.mark.skipif(
    any(one.name == "lightning-thunder" for one in metadata.distributions()),
    reason="it is installed",
)
def test_what_is_not_installed_is_named(bench, compiled):
    plugin = bench.plugin(backend="thunder")
    machine = bench.machine(c_compiler="/usr/bin/cc")
    reasons = list(plugin.check_scenario(bench.run().experiment, machine))
    assert any("pip install lightning-thunder" in reason for reason in reasons)
    with pytest.raises(PluginError, match="pip install lightning-thunder"):
        compiled(bench.blocks(), backend="thunder")


@pytest.mark.skipif(torch.__version__ < "2.12", reason="that pair was not seen to fail")
def test_a_pair_of_versions_that_was_seen_to_fail_is_refused_before_anything_starts(install):
    install("0.2.6", FAILING)
    assert "lightning-thunder 0.2.6 does not work with torch 2." in missing_thunder(HERE)


def test_a_newer_version_is_tried_and_its_failure_is_told(bench, compiled, install):
    install("99.0", FAILING)
    assert missing_thunder({**HERE, "lightning-thunder": "99.0"}) == ""
    with pytest.raises(PluginError, match=r"99.0 with torch .* does not import: .*align_as"):
        compiled(bench.blocks(), backend="thunder")


def test_who_compiled_what_is_counted(bench, compiled, install):
    install("99.0", WORKING)
    model = bench.blocks()
    _, run = compiled(model, backend="thunder")
    assert bench.train(model) == pytest.approx(bench.train(bench.blocks()))
    evidence = evidence_of(run)
    assert evidence["thunder"] == {
        "parts": {"thunder": 1, "torch_inductor": 1},
        "split_reasons": ["no such operator"],
    }


def test_executors_are_found_by_the_names_of_the_documentation(bench, compiled, install):
    found = "from types import SimpleNamespace as Record\n\n\ndef get_all_executors():\n"
    found += "    return [Record(name='torchcompile_cat'), Record(name='sdpa')]\n"
    install("99.0", WORKING, found)
    compiled(bench.blocks(), backend="thunder", executors=["inductor_cat", "sdpa"])
    with pytest.raises(PluginError, match=r"no executor 'cudnn' here, or its package is not"):
        compiled(bench.blocks(), backend="thunder", executors=["cudnn"])
    with pytest.raises(ValidationError, match="executors belong to thunder"):
        bench.plugin(executors=["sdpa"])


@pytest.mark.skipif(bool(missing_thunder(INSTALLED)), reason="Thunder does not work here")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("executors", [[], ["inductor_cat", "sdpa"]])
def test_thunder_itself_compiles_blocks_that_train_alike(bench, compiled, executors):
    model = bench.blocks()
    _, run = compiled(model, backend="thunder", executors=executors)
    assert bench.train(model) == pytest.approx(bench.train(bench.blocks()), rel=1e-5)
    assert evidence_of(run)["thunder"]["parts"]["thunder"] >= 1
