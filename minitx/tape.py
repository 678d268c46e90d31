"""The tape: what remembers a computation, and the loop that walks it backwards.

An op enters one `Node` for each call on tracked Tensors. Nodes are numbered as they are made, so an input is always older
than what was computed from it, and *newest first is an order in which to go back*: every gradient is complete when its turn
comes. `gradients` is that loop. It has no recursion, so a chain of 50,000 ops goes no deeper than one of two.

Read next: `op.py`, which makes the nodes.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import backend
from .backend import Array, array_module, as_array, device_of
from .observer import observer
from .saved import keeps

if TYPE_CHECKING:
    from .op import Op
    from .tensor import Tensor

_serial = itertools.count().__next__


class Node:
    """One op call on the tape. It holds its backward and edges to older nodes, but no Tensor that an op made.

    So nothing here refers to anything newer: there are no cycles, and memory goes by reference count alone.
    """

    __slots__ = ("backward", "edges", "looks", "op", "outputs", "reports", "serial", "writable")

    def __init__(self, op: Op, backward: Callable, edges: Sequence[Any], looks: Sequence[Any], writable: Sequence[Any],
                 outputs: Sequence[Array]) -> None:
        self.serial, self.op = _serial(), op
        self.backward: Callable | None = backward
        # where the gradient of each argument goes: an output (node, slot) of an older op, a leaf, or nowhere
        self.edges = edges
        # and what it must look like, as the argument itself does: (kind of array, shape, dtype)
        self.looks = looks
        # the arguments that `assign_` may change before the way back: (place, array, its version, how often by now)
        self.writable = writable
        # what several outputs look like, of which some may lead nowhere; one output always leads somewhere
        self.outputs = [(y.shape, y.dtype) for y in outputs] if len(outputs) > 1 else None
        self.reports: tuple[Callable, ...] = ()    # who wishes to see the gradients of the outputs

    @property
    def name(self) -> str:
        return self.op.name

    def argument(self, i: int) -> str:
        return self.op.names(len(self.edges))[i]


def gradients(loss: Tensor, seed: Any = None) -> dict[Tensor, Array]:
    """The gradient of `seed · loss` for every tracked leaf: {leaf: array}. Nothing but this tape is touched.

    Args:
        loss: where to start; `seed` may be left out when it is a single number.
        seed: an array of the shape and dtype of `loss`, the gradient that arrives from outside.

    The walk gives back each node's memory as it passes. Arrays of the result may be views: copy before writing.

    >>> x = mx.tensor([1.0, 2.0], requires_grad=True)
    >>> gradients((x * x).sum())[x].tolist()
    [2.0, 4.0]
    """
    if not loss.requires_grad:
        raise RuntimeError("backward: nothing here requires a gradient; was the Tensor made under no_grad(), detached, "
                           "or computed from leaves without requires_grad=True?")
    seed = _seed(loss, seed)
    if loss.node is None:
        return {loss: seed}
    total: dict[Any, Array] = {(loss.node, loss.slot): seed}
    owned = set()                               # the sums that this walk has allocated, and so may write into
    for node in _newest_first(loss.node):
        if node.outputs is None:
            dys = [total.pop((node, 0))]
        else:                                   # of several outputs, some may have led nowhere
            dys = [total.pop((node, slot), None) for slot in range(len(node.outputs))]
            dys = [array_module(seed).zeros(*node.outputs[slot]) if dy is None else dy for slot, dy in enumerate(dys)]
        for report in node.reports:
            report(dys)
        try:
            dxs = node.backward(*dys)       # type: ignore[misc]
        except Exception as error:
            error.add_note(f"This happened in the backward of {node.name}, given gradients of shape "
                           f"{', '.join(str(dy.shape) for dy in dys)}.")
            raise
        if type(dxs) is not tuple or len(dxs) != len(node.edges):
            dxs = _one_each(node, dxs)
        for i, edge in enumerate(node.edges):
            if edge is None:
                continue
            dx, (kind, shape, dtype) = dxs[i], node.looks[i]
            if type(dx) is not kind or dx.shape != shape or dx.dtype != dtype:
                dx = _checked(node, i, dx, kind, shape, dtype)
            if edge not in total:
                total[edge] = dx
            elif edge in owned:
                total[edge] += dx
            else:
                total[edge] = as_array(total[edge] + dx)
                owned.add(edge)
        node.backward, node.edges, node.looks, node.writable, node.reports = None, (), (), (), ()
    if onlooker := observer.get():
        onlooker.leaves(total)
    return total


def on_gradient(t: Tensor, see: Callable[[Array], None]) -> None:
    """Show the gradient by `t`, which an op made, when the way back passes it."""
    slot = t.slot
    t.node.reports += (lambda dys: see(dys[slot]),)      # type: ignore[union-attr]


def _newest_first(start: Node) -> list[Node]:
    """All nodes behind `start`, newest first; every reason not to go back is found here, before the walk begins."""
    found, todo = {start}, [start]
    while todo:
        node = todo.pop()
        if node.backward is None:
            raise RuntimeError(f"backward: the tape behind {node.name} was used up by an earlier backward pass; "
                               f"run the forward pass again, or add the losses and go back once")
        for i, array, version, before in node.writable:
            if version[0] != before and keeps(node.backward, array):
                raise RuntimeError(f"backward: {node.name} kept its argument {node.argument(i)}, which was changed by "
                                   f"assign_ since the forward pass; go back before changing it")
        for edge in node.edges:
            if type(edge) is tuple and edge[0] not in found:
                found.add(edge[0])
                todo.append(edge[0])
    return sorted(found, key=operator.attrgetter("serial"), reverse=True)


def _one_each(node: Node, dxs: Any) -> Sequence[Any]:
    """What a backward returned, as one gradient for each argument."""
    dxs = dxs if type(dxs) is tuple or type(dxs) is list else (dxs,)
    while len(dxs) > len(node.edges) and dxs[-1] is None:       # of an optional argument that was left out
        dxs = dxs[:-1]
    if len(dxs) != len(node.edges):
        raise RuntimeError(f"{node.name}: its backward returned {len(dxs)} gradients for {len(node.edges)} arguments; "
                           f"return one per positional argument, None where there is none")
    return dxs


def _checked(node: Node, i: int, dx: Any, kind: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """The gradient of argument i that a backward returned as an array: of that kind, shape and dtype, or an error."""
    dx = as_array(dx)
    if type(dx) is not kind or dx.shape != shape or dx.dtype != dtype:
        got = (f"shape {dx.shape}, {dx.dtype} on {device_of(dx).name}" if backend.is_array(dx)
               else "None" if dx is None else f"a {type(dx).__name__}")
        raise RuntimeError(f"{node.name}: the gradient of {node.argument(i)} must have its shape {shape} and {dtype}, "
                           f"but the backward returned {got}")
    return dx


def _seed(loss: Tensor, seed: Any) -> Array:
    """The gradient to start from, checked against the Tensor that it belongs to."""
    xp = array_module(loss.array)
    if seed is None:
        if loss.size != 1:
            raise RuntimeError(f"backward: a Tensor of shape {loss.shape} is not a single number; "
                               f"reduce it to a loss with sum() or mean(), or pass a seed of that shape")
        return xp.ones_like(loss.array)
    if getattr(seed, "requires_grad", False):
        raise NotImplementedError("backward: a tracked seed asks for double backward, which is out of minitx's scope; "
                                  "pass seed.detach()")
    seed = getattr(seed, "array", seed)
    if not backend.is_array(seed):
        seed = xp.asarray(backend.numbers("backward", seed, loss.dtype))
    if seed.shape != loss.shape or seed.dtype != loss.dtype or type(seed) is not type(loss.array):
        raise ValueError(f"backward: the seed must look like the Tensor, shape {loss.shape}, {loss.dtype} on {loss.device}; "
                         f"got {seed.shape}, {seed.dtype} on {device_of(seed).name}")
    return seed
