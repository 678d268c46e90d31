"""Random numbers: one shared stream, on the host, so that a seed gives the same run on every device.

Where a step runs on threads (`shards.py`), each needs draws of its own that do not depend on who comes first. So inside a
thread other generators stand for those that the program holds, and `own` finds them.

Read next: `tensor.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from .backend import Array, to_device
from .options import whole

_stream: np.random.Generator | None = None      # made when first asked for: importing numpy.random takes a while

# what stands for a generator here, by its id
standing_in: ContextVar[Mapping[int, np.random.Generator] | None] = ContextVar("standing_in", default=None)


def seed(number: int) -> None:
    """Start the shared random stream again, so that what follows draws the same numbers."""
    global _stream
    whole("seed", 0, number=number)
    _stream = np.random.default_rng(number)


def stream() -> np.random.Generator:
    """The shared random stream, seeded with 0."""
    if _stream is None:
        seed(0)
    return own(_stream)


def own(rng: Any) -> Any:
    """The generator to draw from where `rng` is held: `rng` itself, or what stands for it in this thread."""
    stand_ins = standing_in.get()
    return rng if stand_ins is None else stand_ins.get(id(rng), rng)


def stand_in(rngs: Iterable[np.random.Generator], jumps: int) -> None:
    """From here on, and in this context only, draw from generators so many jumps ahead of these, too far for them to catch up.
    """
    ahead = {id(rng): np.random.Generator(rng.bit_generator.jumped(jumps)) for rng in {*rngs}}   # type: ignore[attr-defined]
    standing_in.set(ahead)


def can_jump(rng: np.random.Generator) -> bool:
    return hasattr(rng.bit_generator, "jumped")


def generators(model: Any) -> dict[str, np.random.Generator]:
    """Where a model (an `nn.Module`) finds random numbers: the shared stream, and what modules hold of their own, by path."""
    found = {"shared stream": stream()}
    for path, module in model.named_modules():
        for name, part in vars(module).items():
            if isinstance(part, np.random.Generator):
                found[f"{path}.{name}".lstrip(".")] = part
            elif hasattr(part, "bit_generator"):
                raise ValueError(f"generators: the random numbers of {path}.{name} come from a device, where their state "
                                 f"cannot be read; build the module with a NumPy generator")
    return found


def keep_mask(rng: Any, shape: tuple[int, ...], p: float, name: str) -> Array:
    """A boolean mask on device `name`, True with probability 1 - p.

    `rng` is a NumPy generator, whose draws are equal on every device, or `device(name).xp.random.default_rng(seed)`:
    faster on a GPU, and no longer equal across devices.
    """
    return to_device(own(rng).random(shape, dtype="float32") >= p, name)
