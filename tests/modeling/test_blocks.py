"""Which modules are a model's decoder blocks, and which belong to its adapters."""

from __future__ import annotations

import peft
from torch import nn

from accel_bench.modeling.blocks import adapter_modules, decoder_blocks


def linears(count: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(2, 2) for _ in range(count))


def test_lists_inside_of_blocks_are_not_taken_for_the_blocks() -> None:
    blocks = nn.ModuleList(nn.ModuleDict({"experts": linears(9)}) for _ in range(2))
    model = nn.ModuleDict({"heads": linears(1), "layers": blocks})
    assert decoder_blocks(model) == ("layers", list(blocks))


def test_of_a_model_that_reads_images_too_the_blocks_are_those_of_its_text() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision = nn.ModuleDict({"layers": linears(5)})
            self.text = nn.ModuleDict({"layers": linears(3)})

        def get_decoder(self) -> nn.Module:
            return self.text

    model = Reader()
    assert decoder_blocks(model) == ("text.layers", list(model.text["layers"]))


def test_a_model_without_lists_has_no_blocks() -> None:
    assert decoder_blocks(nn.Sequential(nn.Linear(2, 2), nn.ModuleList())) == ("", [])


def test_the_blocks_of_an_adapted_model_are_found_and_its_adapters_apart_from_its_own_layers() -> (
    None
):
    model = nn.ModuleDict({"layers": linears(2)})
    assert not adapter_modules(model)
    adapted = peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["0"], r=1), model)
    path, (first, second) = decoder_blocks(adapted)
    assert path == "layers"
    apart = adapter_modules(adapted)
    assert id(first.lora_A["default"]) in apart
    assert not {id(first), id(first.base_layer), id(second)} & apart
