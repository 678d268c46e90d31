"""`@op`: one pure function of arrays that returns its value and its hand-written backward, lifted to Tensors.

    @op("x (...) -> y (...)")
    def square(x):
        y = x * x

        def backward(dy):
            return 2 * x * dy

        return y, backward

`square(t)` works on Tensors and enters the tape; `y, backward = square.vjp(x)` is the function itself, on plain arrays.
Positional arguments are arrays: float ones get a gradient, others `None`. Keyword-only arguments are static.

Read next: `ops/softmax.py`, the first op worth reading.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import backend
from .contract import Lengths, ShapeLine, ShapeRule, any_shape
from .observer import observer
from .tape import Node
from .tensor import Tensor, made, tracking

OPS: dict[str, Op] = {}     # minitx's own ops by name: the list that the gradient-check contract runs over


class Op:
    """An op: `op(...)` on Tensors, `op.vjp(...)` on arrays, `op.reference` a slow readable form of the same."""

    def __init__(self, vjp: Callable, shapes: ShapeLine | ShapeRule, reference: Op | None) -> None:
        functools.update_wrapper(self, vjp)
        self.vjp, self.shapes, self.reference, self.name = vjp, shapes, reference, vjp.__name__
        self.signature = inspect.signature(vjp)
        parameters = self.signature.parameters.values()
        self.arrays = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
        self.many = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self.static = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        self.optional = {p.name for p in parameters if p.default is None}
        self.open = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._seen: set[tuple] = set()
        self._names: dict[int, list[str]] = {}
        said = [spec.name for spec in shapes.inputs]
        if isinstance(shapes, ShapeLine) and said != self.arrays + [self.many] * bool(self.many):
            raise ValueError(f"op {self.name}: its shape line speaks of {', '.join(said) or 'nothing'}, but it takes "
                             f"{self.signature}; name every positional argument, in order")

    def __repr__(self) -> str:
        return f"<op {self.name}: {self.shapes.line}>"

    def __call__(self, *args: Any, **static: Any) -> Any:
        arrays: list[Any] = []
        looks: list[Any] = []           # kind, shape and dtype of each argument
        edges: list[Any] = []           # where the gradient of each argument goes: see `Node`
        writable: list[Any] = []        # the arguments that `assign_` may change
        tracked = False
        for x in args:
            edge = None
            if type(x) is Tensor:
                if x.requires_grad:
                    tracked, edge = True, (x.node, x.slot) if x.node else x
                if x.version:
                    writable.append((len(edges), x.array, x.version, x.version[0]))
                x = x.array
            else:
                x = backend.as_array(x)
            edges.append(edge)
            arrays.append(x)
            looks.append((type(x), x.shape, x.dtype) if edge is not None or backend.is_array(x) else type(x))
        signature = (*looks, *static, *map(type, static.values())) if static else tuple(looks)
        if new := signature not in self._seen:      # so all checks of kinds and shapes are made once
            if static and (plain := self._plain(args, static)):
                return self(*plain[0], **plain[1])
            lengths = self._check(arrays)

        onlooker, vjp = observer.get(), self.vjp
        if onlooker is not None:
            vjp = onlooker.around(self, vjp)
            if "watch" in self.static:
                static.setdefault("watch", onlooker.watch(self, arrays))
        try:
            result = vjp(*arrays, **static)
        except Warning:                         # where warnings are errors
            raise
        except Exception as error:
            raise self._explained(error, arrays, static) from error
        if type(result) is not tuple or len(result) != 2 or not callable(result[1]):
            raise self._no_pair(result)
        out, backward = result
        many = type(out) is tuple
        outs = [backend.as_array(y) for y in out] if many else [backend.as_array(out)]
        if new:
            self._check_outputs(outs, lengths)
            if len(self._seen) >= 4096:
                self._seen.clear()
            self._seen.add(signature)

        node = Node(self, backward, edges, looks, writable, outs) if tracked and tracking.get() else None
        if onlooker is not None:
            report = onlooker.output(self, arrays, outs)
            if node is not None and report is not None:
                node.reports += (report,)
        if many:
            return tuple([made(y, self.name, node, slot, writable) for slot, y in enumerate(outs)])
        return made(outs[0], self.name, node, 0, writable)

    def names(self, count: int) -> list[str]:
        """The names of the first `count` positional arguments; those of `*xs` are numbered."""
        if count not in self._names:
            self._names[count] = [*self.arrays[:count],
                                  *(f"{self.many or 'extra'}[{i}]" for i in range(count - len(self.arrays)))]
        return self._names[count]

    def _plain(self, args: tuple, static: dict) -> tuple[tuple, dict] | None:
        """The same call with every array in its place and options of Python's own types; None where it is so already."""
        if not self.open and not self.static.issuperset(static):
            return self._by_position(args, static)
        plain = {name: self._option(name, value) for name, value in static.items()}
        return (args, plain) if [*map(type, plain.values())] != [*map(type, static.values())] else None

    def _by_position(self, args: tuple, static: dict) -> tuple[tuple, dict]:
        """Arrays that were passed by name, such as `attention(q, k, v, mask=m)`, in their places."""
        try:
            bound = self.signature.bind(*args, **static)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}; it takes {self.signature}") from None
        last = max(i for i, name in enumerate(self.arrays) if name in bound.arguments)
        bound.apply_defaults()              # what was left out before the last array that was given
        given = {name: value for name, value in static.items() if name not in self.arrays}
        return (bound.args if self.many else bound.args[:last + 1]), given

    def _option(self, name: str, value: Any) -> Any:
        """A keyword argument: no Tensor, which would get no gradient; no np.float64, which would make float64 of float32."""
        if isinstance(value, Tensor):
            raise TypeError(f"{self.name}: {name} is a Tensor; expected a plain value, since no gradient goes there; "
                            f"give {name}=t.item(), or t.array")
        if name == "axis" and isinstance(value, bool):
            raise TypeError(f"{self.name}: axis is {value}; expected a whole number")
        return value.item() if isinstance(value, np.generic) else value

    def _no_pair(self, result: Any) -> TypeError:
        """The error of an op that did not return what it must."""
        return TypeError(f"{self.name}: an op returns its value and its backward, `return y, backward`; "
                         f"it returned {type(result).__name__} {' '.join(str(result).split())[:40]}")

    def _check_outputs(self, outs: Sequence[Any], lengths: Lengths) -> None:
        """The values must be arrays, in the shapes that the line promises."""
        for y in outs:
            if not backend.is_array(y):
                raise TypeError(f"{self.name}: its value is a {type(y).__name__}; return an array, or a tuple of them")
        self.shapes.check_outputs(self.name, [y.shape for y in outs], lengths)

    def _check(self, arrays: Sequence[Any]) -> Lengths:
        """What every op asks of its arguments: arrays of one device and one float width, in the shapes of its line."""
        names = self.names(len(arrays))
        devices: dict[str, str] = {}
        widths: dict[str, str] = {}
        for name, x in zip(names, arrays, strict=True):
            if backend.is_array(x):
                devices.setdefault(backend.device_of(x).name, name)
                if x.dtype.kind == "f":
                    widths.setdefault(str(x.dtype), name)
                elif x.dtype.kind not in "iub":
                    raise TypeError(f"{self.name}: {name} has dtype {x.dtype}; expected numbers or booleans")
            elif x is None and (name in self.optional or isinstance(self.shapes, ShapeLine)):
                continue                        # a shape line tells for itself who may be None
            elif not isinstance(x, (int, float)):
                given = "None" if x is None else f"a {type(x).__name__}"
                raise TypeError(f"{self.name}: {name} is {given}; expected a Tensor, an array or a number; "
                                f"make one with minitx.tensor(...)")
        for found, what, remedy in ((devices, "devices", ".to(device)"), (widths, "float widths", "tensor(x, dtype=...)")):
            if len(found) > 1:
                given = " and ".join(f"{name} is {kind}" for kind, name in found.items())
                raise TypeError(f"{self.name}: arguments of different {what}: {given}; convert one with {remedy}")
        self.shapes.check_kinds(self.name, names, [None if x is None else getattr(x, "dtype", type(x)) for x in arrays])
        if arrays and not devices:
            raise TypeError(f"{self.name}: got {', '.join(f'{n} = {x!r}' for n, x in zip(names, arrays, strict=True))}; "
                            f"expected at least one Tensor or array; make one with minitx.tensor(...)")
        return self.shapes.check(self.name, names, [getattr(x, "shape", None if x is None else ()) for x in arrays])

    def _explained(self, error: Exception, arrays: Sequence[Any], static: dict) -> Exception:
        """An error from inside the op, with the op and its arguments in front."""
        kinds = {IndexError: IndexError, TypeError: TypeError, AttributeError: TypeError, ValueError: ValueError,
                 OverflowError: ValueError, ArithmeticError: ArithmeticError, LookupError: LookupError}
        kind: Any = next((kind for found, kind in kinds.items() if isinstance(error, found)), RuntimeError)
        if str(error).startswith(f"{self.name}:"):
            return kind(str(error))
        named = [*zip(self.names(len(arrays)), arrays, strict=True), *((n, v) for n, v in static.items() if n != "watch")]
        given = ", ".join(f"{n} {shown(v)}" if backend.is_array(v) else f"{n} = {shown(v)}" for n, v in named)
        return kind(f"{self.name}: {' '.join(str(error).split())}; called with {given or 'nothing'}")


def shown(value: Any) -> str:
    """A value in a few words, for an error of one line: shape and dtype stand for an array, within an index too."""
    if backend.is_array(value):
        return f"{value.shape} {value.dtype}"
    if type(value) is tuple:
        return f"({', '.join(map(shown, value))}{',' * (len(value) == 1)})"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def op(shapes: str | Callable = any_shape, *, reference: Op | None = None) -> Callable[[Callable], Op]:
    """Lift a function of arrays that returns (value, backward) to Tensors.

    Args:
        shapes: the shape line (see `contract.py`), or a function of shapes that raises ValueError.
        reference: a slow, readable op of the same arguments; the test suite holds the two equal.

    minitx's own ops enter `OPS`; an op of yours (redefined in a notebook, say) just works.
    """
    def lift(vjp: Callable) -> Op:
        if not inspect.isfunction(vjp):
            raise TypeError(f"op: write @op(...) with brackets above a function; got a {type(vjp).__name__}")
        made = Op(vjp, ShapeLine(shapes) if isinstance(shapes, str) else ShapeRule(shapes), reference)
        if (vjp.__module__ or "").split(".")[0] == __name__.split(".")[0]:
            if made.name in OPS:
                raise ValueError(f"op {made.name}: minitx has an op of this name already")
            OPS[made.name] = made
        return made
    return lift
