"""The shape line of an op: its documentation, its check and its error message in one.

    "x (..., D), W (D, 4H), b? (4H) -> y (..., 4H)"

A name with the axes of its array. Equal letters are equal lengths, `4H` is four times H, `...` is any number of leading axes
(the same ones everywhere), `b?` may be left out, `*xs` stands for any number of arrays, and `~(B, T)` for an array that
broadcasts to those axes; a bare output name says nothing about its shape. Arrays hold floating point numbers, unless the line
says `ids:int`, `mask:bool` or `x:any`. Ops that follow other rules (reshape, broadcasting arithmetic) give a function of
shapes instead.

Read next: `op.py`, which asks it at every call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Shape = tuple[int, ...]
Lengths = dict[str, tuple[Any, str]]        # letter -> (its length, the argument that set it)


class Spec(NamedTuple):
    """One array of a shape line."""

    name: str
    axes: tuple[str, ...] = ()
    optional: bool = False
    many: bool = False
    broadcasts: bool = False
    kind: str = "float"

    @property
    def shape(self) -> str:
        return f"{'~' * self.broadcasts}({', '.join(self.axes)})"

    def __str__(self) -> str:
        kind = f":{self.kind}" if self.kind != "float" else ""
        return f"{'*' * self.many}{self.name}{'?' * self.optional}{kind} {self.shape}"


_ARRAY = re.compile(r"(\*?)(\w+)(\??)(?::(int|bool|any))?\s*(~?)(?:\(([^)]*)\))?")
_KINDS = {"float": ("f", "floating point numbers"), "int": ("iu", "integers"), "bool": ("b", "booleans")}
_AXIS = re.compile(r"\d*[A-Za-z]\w*")


def parse(side: str) -> list[Spec]:
    """One side of a shape line."""
    specs = [Spec(name, tuple(a.strip() for a in axes.split(",") if a.strip()), bool(optional), bool(many), bool(tilde),
                  kind or "float") for many, name, optional, kind, tilde, axes in _ARRAY.findall(side)]
    if _ARRAY.sub("", side).strip(" ,"):
        raise ValueError(f"shape line: cannot read {_ARRAY.sub('', side).strip(' ,')!r} in {side!r}; write x (B, T, D)")
    for spec in specs:
        for axis in spec.axes[spec.axes[:1] == ("...",):]:
            if not _AXIS.fullmatch(axis):
                raise ValueError(f"shape line: cannot read the axis {axis!r} of {spec.name} in {side!r}; "
                                 f"write a letter, a product such as 4H, or ... in front of all others")
    return specs


class ShapeLine:
    """A parsed shape line, ready to check arrays against it."""

    def __init__(self, line: str) -> None:
        self.line = line
        left, _, right = line.partition("->")
        self.inputs, self.outputs = parse(left), parse(right)

    def specs(self, names: Sequence[str]) -> list[Spec]:
        """What the line says of each argument; `*xs` speaks for all that are left."""
        specs = [s for s in self.inputs if not s.many]
        return specs + [s._replace(name=n) for s in self.inputs if s.many for n in names[len(specs):]]

    def check_kinds(self, op: str, names: Sequence[str], dtypes: Sequence[Any]) -> None:
        """Raise a TypeError unless every array holds what the line asks for.

        `dtypes` has None where an array was left out, and a type where a Python number stands in its place.
        """
        for spec, dtype in zip(self.specs(names), dtypes, strict=False):
            letters, expected = _KINDS.get(spec.kind, ("", ""))
            if isinstance(dtype, type):
                raise TypeError(f"{op}: {spec.name} must be an array of {expected or 'numbers'}, got a {dtype.__name__}; "
                                f"make one with tensor(...)")
            if dtype is not None and letters and dtype.kind not in letters:
                raise TypeError(f"{op}: {spec.name} must be {expected}, but has dtype {dtype}; "
                                f"convert it with tensor(x, dtype=...)")

    def check(self, op: str, names: Sequence[str], shapes: Sequence[Shape | None]) -> Lengths:
        """Raise a ValueError that names op, argument, expected and given shape, unless all shapes fit; else the lengths."""
        known: Lengths = {}
        pairs = zip(self.specs(names), shapes, strict=False)
        for spec, shape in sorted(pairs, key=lambda pair: pair[0].broadcasts):      # what broadcasts sets no length: last
            if shape is not None:
                problem = match(spec, shape, known)
            elif not spec.optional:
                problem = "is None, but it is not optional"
            else:
                continue
            if problem:
                raise ValueError(f"{op}: {spec.name} must be {spec.shape}, but {problem}")
        return known

    def check_outputs(self, op: str, shapes: Sequence[Shape], known: Lengths) -> None:
        """Raise a ValueError unless an op made what its line promises."""
        if self.outputs and len(self.outputs) != len(shapes):
            raise ValueError(f"{op}: it returned {len(shapes)} arrays; its shape line promises "
                             f"{', '.join(spec.name for spec in self.outputs)}")
        for spec, shape in zip(self.outputs, shapes, strict=False):
            if spec.axes and (problem := match(spec, shape, dict(known))):
                raise ValueError(f"{op}: its output {spec.name} must be {spec.shape}, but {problem}")


def match(spec: Spec, shape: Shape, known: Lengths) -> str | None:
    """Fit one shape, adding what it says to `known`; a sentence when it does not fit."""
    if spec.broadcasts:
        return _match_broadcast(spec, shape, known)
    dotted = spec.axes[:1] == ("...",)
    axes = spec.axes[dotted:]
    leading = max(len(shape) - len(axes), 0) if dotted else 0
    if len(shape) - leading != len(axes):
        return f"has {len(shape)} axes, shape {shape}; reshape it"
    if dotted:
        want, by = known.setdefault("...", (shape[:leading], spec.name))
        if want != shape[:leading]:
            return f"has shape {shape}: its leading axes are {shape[:leading]}, those of {by} are {want}; make them equal"
    for i, (axis, n) in enumerate(zip(axes, shape[leading:], strict=True)):
        times, letter = _split(axis)
        if letter not in known and n % times == 0:
            known[letter] = (n // times, spec.name)
        length, by = known.get(letter, (None, ""))
        if length is None or length * times != n:
            why = f"{letter} = {length} by {by}" if length is not None else f"not a multiple of {times}"
            expected = f" instead of {length * times}" if length is not None else ""
            return f"has shape {shape}: axis {leading + i} is {n}{expected} ({why}); make the two agree"
    return None


def _match_broadcast(spec: Spec, shape: Shape, known: Lengths) -> str | None:
    if unknown := [a for a in spec.axes if a not in known]:
        return f"nothing says how long {', '.join(unknown)} is; give the other arrays too"
    want = tuple(n for a in spec.axes for n in (known["..."][0] if a == "..." else (known[a][0],)))
    tail = want[len(want) - len(shape):] if len(shape) <= len(want) else None
    if tail is None or any(n not in (1, w) for n, w in zip(shape, tail, strict=True)):
        return f"has shape {shape}, which does not broadcast to {want}"
    return None


def _split(axis: str) -> tuple[int, str]:
    """4H -> (4, H)."""
    digits = re.match(r"\d*", axis).group()     # type: ignore[union-attr]
    return int(digits or 1), axis[len(digits):]


class ShapeRule:
    """A function of shapes in place of a shape line; it raises ValueError with the reason."""

    def __init__(self, rule: Callable[..., Any]) -> None:
        self.rule, self.line = rule, (rule.__doc__ or "").strip().split("\n")[0]
        self.inputs: list[Spec] = []
        self.outputs: list[Spec] = []

    def check_kinds(self, op: str, names: Sequence[str], dtypes: Sequence[Any]) -> None:
        """Ops with a function of shapes see to their dtypes themselves; those of any shape take no Python numbers."""
        for name, dtype in zip(names, dtypes, strict=False):
            if self.rule is any_shape and isinstance(dtype, type):
                raise TypeError(f"{op}: {name} must be an array, got a {dtype.__name__}; make one with tensor(...)")

    def check_outputs(self, op: str, shapes: Sequence[Shape], known: Lengths) -> None:
        """Nothing was promised."""

    def check(self, op: str, names: Sequence[str], shapes: Sequence[Shape | None]) -> Lengths:
        try:
            self.rule(*[() if s is None else s for s in shapes])
        except (TypeError, ValueError) as reason:       # a TypeError: too few arrays, or too many
            given = ", ".join(f"{n} {s}" for n, s in zip(names, shapes, strict=False))
            raise type(reason)(f"{op}: {reason}; got {given}") from None
        return {}


def any_shape(*shapes: Shape) -> None:
    """arrays of any shape"""
