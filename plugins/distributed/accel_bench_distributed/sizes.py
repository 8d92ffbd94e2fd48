"""Sizes of a device mesh, given or derived from the number of devices."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Sizes:
    """Sizes of the dimensions of a device mesh, outermost first, as numbers of ranks."""

    replicate: int
    shard: int
    tensor: int
    expert: int

    dispatch: bool = False
    """True if each rank of `expert` has its own batches, and ranks exchange tokens."""

    @property
    def sharded(self) -> int:
        """Number of ranks over which FSDP2 shards: `shard`, times `expert` with `dispatch`."""
        return self.shard * self.expert if self.dispatch else self.shard

    @property
    def data_parallel(self) -> int:
        """Number of rank groups, each of which has its own batches."""
        return self.replicate * self.sharded

    @property
    def per_batch(self) -> int:
        """Number of ranks that compute one batch: `tensor` or, without `dispatch`, the larger one
        of `tensor` and `expert`."""
        return self.tensor if self.dispatch else max(self.tensor, self.expert)

    @property
    def within_a_node(self) -> int:
        """Number of ranks in a group that must be on one node.

        The group spans all dimensions except the outermost.
        """
        return self.per_batch * (self.sharded if self.replicate > 1 else 1)

    def shards_blocks(self, copies: bool) -> bool:
        """Return whether FSDP2 wraps the blocks: to shard, to replicate, or to cast weights.

        `copies` is True if the forward pass needs 16-bit copies of the weights.
        """
        return self.data_parallel > 1 or self.per_batch == 1 or copies

    @property
    def fraction(self) -> float:
        """Fraction of the model on one device, from 0 to 1, if all of the model is divided."""
        return 1 / (self.sharded * self.per_batch)

    def __str__(self) -> str:
        named = {name: size for name, size in vars(self).items() if size > 1}
        return " x ".join(f"{name} {size}" for name, size in named.items()) or "one device"


def fill(sizes: dict[str, int | None], devices: int, dispatch: bool = False) -> Sizes | str:
    """Return the sizes of a mesh of all devices, or an error message if no mesh fits.

    `sizes` has the size of each dimension by name, where at most one is None and is computed from
    the number of devices. `dispatch` becomes the field of the same name.
    """
    known = {name: 1 if size is None else size for name, size in sizes.items()}
    batch = max(known["tensor"], known["expert"])
    product = prod((known["replicate"], known["shard"], batch))
    open_name = next((name for name, size in sizes.items() if size is None), None)
    if open_name is not None:
        rest, left = divmod(devices, product)
        if left or not rest:
            noun = "device" if devices == 1 else "devices"
            return f"{_shown(sizes)} = {product} devices cannot be filled up to {devices} {noun}"
        known[open_name] = rest * known[open_name]
        return Sizes(**known, dispatch=dispatch)
    if product != devices:
        return (
            f"{_shown(sizes)} = {product} devices, and resources.devices x resources.nodes is "
            f"{devices}; set one of the sizes to auto, which fills the rest"
        )
    return Sizes(**known, dispatch=dispatch)


def _shown(sizes: dict[str, int | None]) -> str:
    given = {name: size for name, size in sizes.items() if size not in (None, 1)}
    return " x ".join(f"{name} {size}" for name, size in given.items()) or "1"
