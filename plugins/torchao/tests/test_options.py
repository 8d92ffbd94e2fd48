"""Options that cannot train are refused by name, with the reason and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_torchao import TorchAOOptions
from pydantic import ValidationError

from accel_bench.errors import PluginError
from accel_bench.machine.info import read_machine
from accel_bench.testing import run_plugin

FLOAT8 = {"float8_training": "tensorwise", "emulate": True}


@pytest.mark.parametrize(
    "name",
    [
        "Int8DynamicActivationInt8WeightConfig",
        "Int8DynamicActivationIntxWeightConfig",
        "Float8DynamicActivationFloat8WeightConfig",
        "Float8DynamicActivationInt4WeightConfig",
        "Int8StaticActivationInt8WeightConfig",
        "int8_dynamic_activation_int8_weight",
        "int8-dynamic",
    ],
)
def test_configurations_that_cut_the_gradient_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TorchAOOptions(weights=name)  # type: ignore[arg-type]
    text = str(refused.value)
    assert all(part in text for part in (name, "cuts the gradient", "int8, intx, float8 or nf4"))


@pytest.mark.parametrize("name", ["int4", "Int4WeightOnlyConfig", "int4_weight_only"])
def test_int4_is_refused_since_it_has_no_backward(name: str) -> None:
    with pytest.raises(ValidationError, match=r"no backward, on no device.*use nf4"):
        TorchAOOptions(weights=name)  # type: ignore[arg-type]


def test_the_int4_product_really_has_no_backward() -> None:
    """The reason above; if this fails, torch has one by now and int4 can come in."""
    inputs = torch.randn(4, 64, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randint(0, 16, (32, 64), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weights, 1)
    scales = torch.randn(2, 32, 2, dtype=torch.bfloat16)
    product = torch.ops.aten._weight_int4pack_mm_for_cpu(inputs, packed, 32, scales)
    with pytest.raises(RuntimeError, match="not implemented"):
        product.sum().backward()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"weights": "Int8WeightOnlyConfig"}, "is called 'int8' here"),
        ({"weights": "int7"}, "'int8', 'intx', 'float8', 'nf4' or 'none'"),
        ({"weights": "int8", "float8_training": "rowwise"}, "exclude each other"),
        ({"weights": "none"}, "nothing to do"),
        ({"weights": "int8", "bits": 4}, "bits belongs to weights: intx"),
        ({"weights": "intx", "bits": 1}, "greater than or equal to 2"),
        ({"float8_training": "tensorwise", "group_size": 32}, "group_size belongs to quantized"),
        ({"weights": "int8", "emulate": True}, "emulate belongs to float8_training"),
        ({"float8_training": "blockwise"}, "tensorwise"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TorchAOOptions(**options)


def test_a_wrong_option_names_plugin_and_field() -> None:
    with pytest.raises(PluginError, match=r"plugin 'torchao'.*unknown key 'bit'.*'bits'"):
        run_plugin("torchao", bit=4)


def test_only_a_quantized_base_claims_loading_and_needs_an_adapter(bench: Any) -> None:
    assert bench.plugin().claims() == {"load_model"}
    assert bench.plugin().needs_adapter
    assert bench.plugin(**FLOAT8).claims() == frozenset()
    assert not bench.plugin(**FLOAT8).needs_adapter


def test_a_model_that_is_quantized_already_is_skipped_before_anything_starts(
    bench: Any, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    experiment = bench.experiment(model={"id": str(tmp_path)})
    (reason,) = bench.plugin().check_scenario(experiment, read_machine())
    assert "is quantized already" in reason
