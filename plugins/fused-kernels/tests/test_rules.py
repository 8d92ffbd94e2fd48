"""The rules name classes and functions of the installed transformers."""

import inspect
from importlib import import_module
from itertools import pairwise
from types import ModuleType

import pytest
import transformers
from accel_bench_fused_kernels.rules import RULES, Rules

pytestmark = pytest.mark.filterwarnings("ignore")


def modeling_of(architecture: str) -> ModuleType:
    return import_module(getattr(transformers, architecture).__module__)


@pytest.mark.parametrize("architecture", RULES)
def test_classes_and_functions_are_there(architecture: str) -> None:
    modeling, rules = modeling_of(architecture), RULES[architecture]
    norms = rules.norms.classes if rules.norms else frozenset()
    for name in {*norms, *rules.gated_mlps, *rules.experts}:
        assert inspect.isclass(getattr(modeling, name))
    for name in filter(None, (rules.rotary, rules.loss.router)):
        assert inspect.isfunction(getattr(modeling, name))
    assert hasattr(transformers.modeling_outputs, rules.loss.output)


@pytest.mark.parametrize("architecture", RULES)
def test_what_the_architecture_has_is_in_its_rules(architecture: str) -> None:
    """A later transformers that adds such a part shows up here."""
    modeling, rules = modeling_of(architecture), RULES[architecture]
    names = {name for name, kind in vars(modeling).items() if inspect.isclass(kind)}
    norms = rules.norms.classes if rules.norms else frozenset()
    assert {name for name in names if name.endswith(("RMSNorm", "T5LayerNorm"))} == norms
    assert (rules.rotary is None) == (not hasattr(modeling, "apply_rotary_pos_emb"))
    forward = inspect.getsource(getattr(modeling, architecture).forward)
    assert ("logits_scaling" in forward) == (rules.loss.divisor is not None)
    assert ("softcapping" in forward) == (rules.loss.softcap is not None)
    assert ("aux_loss" in forward) == (rules.loss.router is not None)


@pytest.mark.parametrize(
    ("architecture", "rules"), [(name, rules) for name, rules in RULES.items() if rules.norms]
)
def test_norms_whose_output_is_added_to_the_stream_are_known(
    architecture: str, rules: Rules
) -> None:
    """Their gradient is the stream's own: a kernel that wrote into it would corrupt that."""
    layers = [
        kind
        for name, kind in vars(modeling_of(architecture)).items()
        if name.endswith(("DecoderLayer", "LayerFF", "LayerSelfAttention", "LayerCrossAttention"))
    ]
    assert layers
    added = {
        line.split("self.")[1].partition("(")[0]
        for layer in layers
        for line, following in pairwise(inspect.getsource(layer.forward).splitlines())
        if "norm(" in line and "residual + hidden_states" in following
    }
    assert rules.norms is not None
    assert added == rules.norms.shared_gradient
