"""Module: a tree of named parameters with a `forward` that calls ops.

Read next: `layers.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import backend
from ..backend import Array
from ..observer import observer
from ..tensor import Tensor


class Module:
    """Base of everything with parameters. Its attributes are its parts: leaf Tensors, Modules, and lists or dicts of them.

    A subclass sets them in `__init__` and composes ops in `forward`; calling the module calls `forward`.
    """

    training = True

    def forward(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: a Module needs a forward method")

    def __call__(self, *args: Any, **options: Any) -> Any:
        onlooker = observer.get()
        forward = self.forward if onlooker is None else onlooker.module(self, self.forward)
        return forward(*args, **options)

    def _parts(self) -> Iterator[tuple[str, Module | Tensor]]:
        """The Modules and leaf Tensors directly inside this one, by name; "layers.0" is the first in a list, "heads.en" one of
        a dict. What an op made is no part, such as a state that is carried along."""
        for name, value in vars(self).items():
            yield from parts_of(name, value)

    def named_modules(self, path: str = "") -> Iterator[tuple[str, Module]]:
        """This module (its path is "") and all below it, by path, such as "blocks.0.attention"; each comes once."""
        yield from self._named_modules(path, set())

    def _named_modules(self, path: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
        if id(self) in seen:
            return
        seen.add(id(self))
        yield path, self
        for name, part in self._parts():
            if isinstance(part, Module):
                yield from part._named_modules(f"{path}.{name}" if path else name, seen)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters by path; one that is used in two places comes once, under the first."""
        seen = set()
        for path, module in self.named_modules():
            for name, part in module._parts():
                if isinstance(part, Tensor) and id(part) not in seen:
                    seen.add(id(part))
                    yield f"{path}.{name}" if path else name, part

    def parameters(self) -> list[Tensor]:
        return [p for _, p in self.named_parameters()]

    def count_parameters(self) -> int:
        """How many numbers there are to learn."""
        return sum(p.size for p in self.parameters())

    def __repr__(self) -> str:
        """The tree of modules, each with how many numbers it has to learn, and the shapes of its own parameters."""
        return "\n".join(self._tree("", (self,)))

    def _tree(self, name: str, inside: tuple[Module, ...]) -> Iterator[str]:
        own = [f"{n} {part.shape}" for n, part in self._parts() if isinstance(part, Tensor)]
        yield f"{name}{type(self).__name__} {self.count_parameters():,}  {', '.join(own)}".rstrip()
        for n, part in self._parts():
            if isinstance(part, Module) and part not in inside:
                yield from (f"  {line}" for line in part._tree(f"{n}: ", (*inside, part)))

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters():
            p.grad = None

    def train(self, mode: bool = True) -> Module:
        """Training behaviour (dropout is on) for this module and all below it; returns the module."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Evaluation behaviour (dropout is off)."""
        return self.train(False)

    def evaluating(self) -> contextlib.AbstractContextManager[None]:
        """Evaluation behaviour inside the block; after it every module here is in the mode that it was in before."""
        return evaluating([module for _, module in self.named_modules()])

    def to(self, device: str | None = None, *, dtype: Any = None) -> Module:
        """Move all parameters to a device, or to another float dtype, in place; returns the module."""
        if dtype is not None and "float" not in str(dtype):
            raise TypeError(f"to: parameters are floating point numbers, got dtype {dtype}; use float16, float32 or float64")
        for p in self.parameters():
            array = p.array if device is None else backend.to_device(p.array, device)
            p.array, p.grad = array if dtype is None else array.astype(dtype), None
        return self

    def state_dict(self) -> dict[str, Array]:
        """Copies of all parameters on the host, by path."""
        return {path: p.numpy() for path, p in self.named_parameters()}

    def check_state_dict(self, state: Mapping[str, Array]) -> None:
        """Raise ValueError unless every name and shape fits, so that `load_state_dict` can take this state."""
        if not isinstance(state, Mapping) or not all(backend.is_array(a) and a.dtype.kind in "fiub" for a in state.values()):
            raise TypeError("load_state_dict: the state must be arrays of numbers by name, as state_dict() gives them")
        own = dict(self.named_parameters())
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or unknown:
            raise ValueError(f"load_state_dict: the names differ; missing: {', '.join(missing) or 'none'}; "
                             f"unknown: {', '.join(unknown) or 'none'}; build the model as it was when saved")
        for path, p in own.items():
            if tuple(state[path].shape) != p.shape:
                raise ValueError(f"load_state_dict: {path} has shape {p.shape} here and {tuple(state[path].shape)} in the "
                                 f"saved state; build the model with the sizes it was saved with")

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Overwrite all parameters. Nothing is written unless every name and shape fits."""
        self.check_state_dict(state)
        for path, p in self.named_parameters():
            p.assign_(backend.to_device(state[path], p.device).astype(p.dtype))


@contextlib.contextmanager
def evaluating(modules: Sequence[Module]) -> Iterator[None]:
    """Evaluation behaviour of these modules inside the block; who needs it at every step looks for all modules only once."""
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, before, strict=True):
            module.training = mode


def check_sequences(caller: str, x: Any) -> None:
    """Raise ValueError unless x is a Tensor or an array (B, T, D)."""
    if getattr(x, "ndim", None) != 3:
        raise ValueError(f"{caller}: x is {f'of shape {x.shape}' if hasattr(x, 'shape') else f'a {type(x).__name__}'}; "
                         f"expected a Tensor (B, T, D), a row of D numbers for each of T steps in B sequences")


def as_lengths(caller: str, lengths: Any, device: str) -> Array | None:
    """Lengths (B), however they came, as an array of integers on a device; None stays None. Their range the op checks."""
    if lengths is None:
        return None
    array = lengths.array if isinstance(lengths, Tensor) else lengths
    if not backend.is_array(array):
        array = backend.numbers(f"{caller}: lengths", lengths)
        array = array if array.size else array.astype("int64")          # an empty list does not say of what
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{caller}: lengths has shape {array.shape} and dtype {array.dtype}; expected whole numbers (B), "
                         f"how many steps each sequence has")
    return backend.to_device(array, device)


def parts_of(name: str, value: Any) -> Iterator[tuple[str, Module | Tensor]]:
    if isinstance(value, Module) or (isinstance(value, Tensor) and not value.made_by):
        yield name, value
    elif isinstance(value, (list, tuple, dict)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from parts_of(f"{name}.{key}", item)
