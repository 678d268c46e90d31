"""Module: a tree of named parameters with a `forward` that calls ops.

Read next: `layers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .. import backend
from ..backend import Array
from ..op import observer
from ..tensor import Tensor


class Module:
    """Base of everything with parameters. Its attributes are its parts: leaf Tensors, Modules, and lists of Modules.

    A subclass sets them in `__init__` and composes ops in `forward`; calling the module calls `forward`.
    """

    training = True

    def forward(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: a Module needs a forward method")

    def __call__(self, *args: Any, **options: Any) -> Any:
        onlooker = observer.get()
        if onlooker is None:
            return self.forward(*args, **options)
        with onlooker.module(self):
            return self.forward(*args, **options)

    def children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly inside this one, by name; those in a list are numbered."""
        for name, part in vars(self).items():
            if isinstance(part, Module):
                yield name, part
            elif isinstance(part, (list, tuple)):
                yield from ((f"{name}.{i}", item) for i, item in enumerate(part) if isinstance(item, Module))

    def named_modules(self, path: str = "") -> Iterator[tuple[str, Module]]:
        """This module (its path is "") and all below it, by path, such as "blocks.0.attention"."""
        yield path, self
        for name, child in self.children():
            yield from child.named_modules(f"{path}.{name}" if path else name)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters by path; one that is used in two places comes once, under the first."""
        seen = set()
        for path, module in self.named_modules():
            for name, part in vars(module).items():
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
        return "\n".join(self._tree())

    def _tree(self, name: str = "") -> Iterator[str]:
        own = [f"{n} {p.shape}" for n, p in vars(self).items() if isinstance(p, Tensor)]
        yield f"{name}{type(self).__name__} {self.count_parameters():,}  {', '.join(own)}".rstrip()
        for child_name, child in self.children():
            yield from (f"  {line}" for line in child._tree(f"{child_name}: "))

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

    def to(self, device: str | None = None, *, dtype: Any = None) -> Module:
        """Move all parameters to a device, or to another float dtype, in place; returns the module."""
        for p in self.parameters():
            array = p.array if device is None else backend.to_device(p.array, device)
            p.array, p.grad = array if dtype is None else array.astype(dtype), None
        return self

    def state_dict(self) -> dict[str, Array]:
        """Copies of all parameters on the host, by path."""
        return {path: p.numpy() for path, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Overwrite all parameters. Nothing is written unless every name and shape fits."""
        own = dict(self.named_parameters())
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or unknown:
            raise ValueError(f"load_state_dict: the names differ; missing: {', '.join(missing) or 'none'}; "
                             f"unknown: {', '.join(unknown) or 'none'}; build the model as it was when saved")
        for path, p in own.items():
            if tuple(state[path].shape) != p.shape:
                raise ValueError(f"load_state_dict: {path} has shape {p.shape} here and {tuple(state[path].shape)} in the "
                                 f"saved state; build the model with the sizes it was saved with")
        for path, p in own.items():
            p.assign_(backend.to_device(state[path], p.device).astype(p.dtype))
