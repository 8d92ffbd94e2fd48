"""Loading of GPTQ checkpoints, whose layers are replaced by trainable layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_bench import Run, model_directory
from accel_bench.errors import ScenarioError
from accel_bench_gptq.checkpoint import (
    QUANTIZATION,
    TRAINABLE_BITS,
    GPTQSettings,
    checkpoint_problem,
)
from accel_bench_gptq.packing import WORD_BITS, Packed

if TYPE_CHECKING:
    from accel_bench_gptq import AutoGPTQOptions
    from accel_bench_gptq.loading import ModelPacker


def load_checkpoint(
    run: Run, packing: ModelPacker, options: AutoGPTQOptions, folder: Path | None
) -> Any:
    """Return the model of a checkpoint on the run's device, with trainable packed layers.

    `folder` has the checkpoint; if it is None, the scenario's model is the checkpoint. `packing`
    records the layers. Raises ScenarioError if the checkpoint cannot be loaded, or if its
    quantization differs from the options.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from accel_bench import check_fit

    use = run.scenario.model
    source = _source(run, folder)
    try:
        config = AutoConfig.from_pretrained(**source)
        quantization = getattr(config, QUANTIZATION, None) or {}
        if problem := checkpoint_problem(use.id, quantization, options):
            raise ScenarioError(problem)
        check_fit(config, run)
        packing.settings = GPTQSettings.of_checkpoint(quantization)
        # What reads the files must not choose: on a CPU the automatic one cuts gradients.
        config.quantization_config = {**quantization, "backend": "gptq_torch"}
        config.use_cache = False
        model, loading = AutoModelForCausalLM.from_pretrained(
            **source,
            config=config,
            dtype=getattr(torch, use.dtype),
            attn_implementation=use.attention,
            device_map={"": str(run.device)},
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ScenarioError(f"the checkpoint {use.id!r} cannot be loaded: {reason}") from error
    # What is absent would be memory as it was found, and only a warning would tell.
    if missing := sorted(loading["missing_keys"]):
        raise ScenarioError(
            f"the checkpoint {use.id!r}: {len(missing)} tensors are not in its files, "
            f"{missing[0]} among them"
        )
    _adopt(model, packing)
    return model


def _source(run: Run, folder: Path | None) -> dict[str, Any]:
    """Return the keyword arguments of `from_pretrained` that locate a checkpoint.

    It is in `folder`; if that is None, the scenario's model is the checkpoint.
    """
    use = run.scenario.model
    directory = folder or model_directory(use)
    if directory is not None:
        return {"pretrained_model_name_or_path": str(directory), "local_files_only": True}
    return {"pretrained_model_name_or_path": use.id, "revision": use.revision or "main"}


def _adopt(model: Any, packing: ModelPacker) -> None:
    """Replace GPTQModel's packed layers in a model by trainable layers with the same tensors.

    `packing` records the new layers, and the linear layers that are not packed.
    """
    from gptqmodel.nn_modules.qlinear import BaseQuantLinear

    output = model.get_output_embeddings()
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if isinstance(module, BaseQuantLinear):
            model.set_submodule(name, packing.add(name, _adopted(name, module, packing)))
        elif type(module).__name__ == "Linear" and module is not output:
            packing.keep(name, module)


def _adopted(name: str, layer: Any, packing: ModelPacker) -> Any:
    """Return a trainable layer with the tensors of a packed layer of GPTQModel.

    `name` is the layer's dotted name, for the message. Raises ScenarioError if no kernel can train
    with the layer's number of bits.
    """
    from accel_bench_gptq import impl

    # A checkpoint may say otherwise for single layers.
    own = {"bits": layer.bits, "group_size": layer.requested_group_size}
    settings = packing.settings.model_copy(update=own)
    if layer.bits not in TRAINABLE_BITS or layer.pack_dtype_bits != WORD_BITS:
        raise ScenarioError(
            f"the checkpoint keeps {name} in {layer.bits} bits, in words of "
            f"{layer.pack_dtype_bits}, which no kernel here trains"
        )
    packed = Packed(*(getattr(layer, part) for part in Packed._fields))
    return impl.make_layer(packed, layer.bias, packing.triton, settings)
