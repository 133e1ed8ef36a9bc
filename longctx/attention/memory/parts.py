"""A memory whose slots are divided over the devices of a mesh axis, each with its part."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

WHOLE = PartitionSpec()


def on_parts(axis: str, function: Callable[..., Any], specs: tuple[Any, ...], out: Any) -> Any:
    """Return a function that each device of a mesh axis runs on its part of the arguments.

    Args:
        axis: A name in the current mesh; its other axes divide as they like.
        function: What a device does; it may use collectives over the axis.
        specs, out: For each argument, and for what is returned, `slots_of` or `WHOLE`.

    Raises:
        ValueError: there is no current mesh with this axis.
    """
    devices_of(axis)
    return jax.shard_map(
        function, in_specs=specs, out_specs=out, axis_names={axis}, check_vma=False
    )


def devices_of(axis: str) -> int:
    """Return the number of devices along an axis of the current mesh.

    Raises:
        ValueError: there is no such axis.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if axis not in mesh.axis_names:
        raise ValueError(
            f"the memory is divided over the mesh axis {axis!r}, but the current mesh has "
            f"{', '.join(map(repr, mesh.axis_names)) or 'no axes'}: call jax.set_mesh with a mesh "
            "that has it, or keep the memory whole with divided=None"
        )
    return mesh.shape[axis]


def slots_of(entries: Any, axis: str) -> Any:
    """Return how entries (keys, values, scales and places) are divided by their slots."""

    def spec(x: jax.Array) -> PartitionSpec:
        before = min(2, x.ndim - 1)  # places are [batch slots], all else [batch kv_heads slots ...]
        return PartitionSpec(*[None] * before, axis)

    return jax.tree.map(spec, entries)


def divided(entries: Any, slots: int, axis: str) -> Any:
    """Return entries of which each device along the axis holds a part.

    Raises:
        ValueError: the slots can't be divided, or there is no such axis.
    """
    devices = devices_of(axis)
    if slots % devices:
        raise ValueError(
            f"a memory of {slots} slots (its local window and its size) can't be divided over "
            f"{devices} devices: take {devices - slots % devices} more"
        )
    return jax.tree.map(jax.lax.with_sharding_constraint, entries, slots_of(entries, axis))
