"""gradcheck: compare a backward, written by hand, with what small nudges of the inputs do.

For a function y = f(x) and a *random* gradient dy of its output, the backward claims dx = dy · ∂y/∂x. Moving one element of x
by ±step changes dy · y by ±step · dx_i, up to step²; that is the other number. The gradient of the output must be random:
with ones, `out.sum()`, a softmax whose backward returns zeros passes every check, because its rows always sum to one.

Small inputs are checked element by element, large ones along random directions.

Read next: `docs/gradient_checks.md`, the contract that every op of minitx is held to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import backend
from .backend import Array
from .contract import ShapeRule, any_shape
from .op import Op
from .tape import gradients
from .tensor import Tensor, no_grad

ELEMENTWISE = 400       # inputs of up to this size are checked element by element
DIRECTIONS = 8          # larger ones along this many random directions
CLEAR = 1e-3            # from this size on a gradient is clearly not zero, and a relative error means something


class GradcheckError(AssertionError):
    """A gradient that the nudges contradict; the message names function, input, index and both numbers."""


@dataclass
class InputReport:
    """One input: how many numbers were compared, and the worst pair among them."""

    name: str
    shape: tuple[int, ...]
    compared: int = 0
    worst: float = 0.0              # |ours - nudged| / (atol + rtol max(|ours|, |nudged|)): above 1 is a failure
    where: str = ""
    ours: float = 0.0
    nudged: float = 0.0
    scale: float = 0.0              # the largest |gradient| seen
    relative: float = 0.0           # the largest |ours - nudged| / |nudged| among those above CLEAR


@dataclass
class GradcheckReport:
    """What was checked. Truthy, prints as a table."""

    function: str
    inputs: list[InputReport] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"gradcheck {self.function}: ok"]
        for i in self.inputs:
            rows.append(f"  {i.name:<14} {i.shape!s:<16} {i.compared:>5} compared   largest |gradient| {i.scale:.3g}   "
                        f"worst error {abs(i.ours - i.nudged):.1e} at {i.where}" if i.compared else
                        f"  {i.name:<14} {i.shape!s:<16}     empty")
        return "\n".join(rows)

    __repr__ = __str__


def gradcheck(fn: Callable, *inputs: Any, step: float = 1e-5, rtol: float = 1e-6, atol: float = 1e-8, seed: int = 0,
              parameters: bool = True, **static: Any) -> GradcheckReport:
    """Check the gradients of `fn(*inputs, **static)` by every float input, in float64, with random output gradients.

    Args:
        fn: an op, a module, or any function of Tensors that returns a Tensor or a tuple of them. The parameters of a module
            (what its `named_parameters()` gives) are checked too, unless `parameters=False`.
        inputs: Tensors or arrays. Float ones become float64 and are checked, others are passed on.
        step: how far an element is nudged; the error of the nudge is about step² times the third derivative, plus 1e-16/step.
        rtol, atol: pass when |ours - nudged| ≤ atol + rtol · max(|ours|, |nudged|).
        seed: of the random output gradients and directions.

    Returns a report. Raises GradcheckError, an AssertionError, naming function, input, index and both numbers; a kink within
    `step` of an element is told apart from a wrong backward. A function must give the same values when called again.
    """
    name, rng = getattr(fn, "name", getattr(fn, "__name__", type(fn).__name__)), np.random.default_rng(seed)
    leaves = [_promoted(x) for x in inputs]
    weights = list(fn.named_parameters()) if parameters and hasattr(fn, "named_parameters") else []
    named = [*zip(_names(fn, len(inputs)), leaves, strict=True), *weights]
    checked = [(n, t) for n, t in named if isinstance(t, Tensor) and t.requires_grad]
    if not checked:
        raise ValueError(f"gradcheck {name}: none of the {len(inputs)} inputs has floating point numbers; nothing to check")
    if narrow := [f"{n} is {t.dtype}" for n, t in weights if t.dtype != "float64"]:
        raise ValueError(f"gradcheck {name}: parameter {narrow[0]}, too coarse for nudges; "
                         f"build the module with dtype='float64'")

    def run() -> list[Tensor]:
        out = fn(*leaves, **static)
        return [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if t.dtype.kind == "f"]

    starts = [backend.to_host(leaf.array).copy() for _, leaf in checked]

    def untouched(who: str) -> None:
        for (arg, leaf), start in zip(checked, starts, strict=True):
            if not np.array_equal(backend.to_host(leaf.array), start, equal_nan=True):
                raise GradcheckError(f"gradcheck {name}: {who} wrote into the input {arg}; compute a new array instead")

    outputs = run()
    untouched("the forward pass")
    if [y.dtype for y in outputs] != ["float64"] * max(len(outputs), 1):
        raise ValueError(f"gradcheck {name}: expected outputs in float64, like the inputs, got "
                         f"{[str(y.dtype) for y in outputs] or 'integers'}; nudges need its digits")
    dys = [_like(rng.standard_normal(y.shape), y.array) for y in outputs]
    _same(name, outputs, run())
    ours = _gradients(outputs, dys)
    untouched("the backward pass")

    def value() -> np.ndarray:
        """The terms of Σ dy · y, whose change is what the backward predicts."""
        with no_grad():
            return np.concatenate([(backend.to_host(y.array) * backend.to_host(dy)).ravel()
                                   for y, dy in zip(run(), dys, strict=True)])

    report = GradcheckReport(name)
    for (arg, leaf), start in zip(checked, starts, strict=True):
        dx = backend.to_host(ours[leaf]) if leaf in ours else np.zeros(leaf.shape)
        report.inputs.append(_check_input(name, arg, leaf, start, dx, value, step, rtol, atol, rng))
    return report


def _check_input(fn: str, arg: str, leaf: Tensor, start: np.ndarray, dx: np.ndarray, value: Callable, step: float,
                 rtol: float, atol: float, rng: np.random.Generator) -> InputReport:
    """Nudge one input, element by element or along random directions, and compare."""
    report = InputReport(arg, leaf.shape, scale=float(np.abs(dx).max(initial=0)))
    at = value()
    if leaf.size <= ELEMENTWISE:
        directions = ((np.unravel_index(k, leaf.shape), _unit(leaf.shape, k)) for k in range(leaf.size))
    else:
        directions = ((None, _unit_length(rng.standard_normal(leaf.shape))) for _ in range(DIRECTIONS))
    for index, direction in directions:
        try:
            leaf.array[...] = _like(start + step * direction, leaf.array)
            up = _change(value(), at)
            leaf.array[...] = _like(start - step * direction, leaf.array)
            down = _change(value(), at)
        finally:
            leaf.array[...] = _like(start, leaf.array)
        theirs, mine = float((up - down).sum()) / (2 * step), float((dx * direction).sum())
        limit = atol + rtol * max(abs(mine), abs(theirs))
        worst = abs(mine - theirs) / limit if np.isfinite([mine, theirs]).all() else np.inf
        report.compared += 1
        if abs(mine) > CLEAR:
            report.relative = max(report.relative, abs(mine - theirs) / max(abs(mine), abs(theirs)))
        if worst > report.worst or report.compared == 1:
            where = f"{arg}[{', '.join(map(str, index))}]" if index is not None else f"{arg}, along a random direction"
            report.worst, report.where, report.ours, report.nudged = worst, where, mine, theirs
            bend = float((up + down).sum()) / step
    if report.compared and report.worst > 1:
        raise GradcheckError(_explain(fn, report, bend, step, rtol, atol))
    return report


def _explain(fn: str, report: InputReport, bend: float, step: float, rtol: float, atol: float) -> str:
    ours, nudged = report.ours, report.nudged
    message = (f"gradcheck {fn}: the gradient of {report.where} is {ours:.10g} by backward, {nudged:.10g} by nudging "
               f"(difference {abs(ours - nudged):.2e}, allowed {atol + rtol * max(abs(ours), abs(nudged)):.2e})")
    if abs(bend) > 1e-2 * max(abs(nudged), atol / step):
        return message + (f". The function has a kink within step = {step:g} of this point (its slopes on the two sides differ "
                          f"by {abs(bend):.3g}), where no gradient is right: check at another point or with a smaller step")
    if ours == 0:
        return message + ". Backward says that this element has no influence: is its gradient returned at all?"
    ratio = nudged / ours
    for factor, meaning in ((-1, "a sign is flipped"), (2, "a factor 2 is missing"), (0.5, "a factor 2 too much, or counted twice")):
        if abs(ratio - factor) < 1e-4:
            return message + f". Their ratio is {ratio:.6g}: {meaning}?"
    return message


def _names(fn: Callable, count: int) -> list[str]:
    """The names of the first `count` positional arguments."""
    if isinstance(fn, Op):
        return fn.names(count)
    try:
        parameters = inspect.signature(getattr(fn, "forward", fn)).parameters.values()
    except (TypeError, ValueError):
        return [f"input {i}" for i in range(count)]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return names + [f"input {i}" for i in range(len(names), count)]


def _promoted(x: Any) -> Any:
    """A float64 leaf of its own for every array of floats; everything else as it is."""
    array = x.array if isinstance(x, Tensor) else np.asarray(x) if isinstance(x, np.generic) else x
    if not backend.is_array(array) or array.dtype.kind != "f":
        return x
    return Tensor(array.astype("float64", copy=True), requires_grad=True)


def _gradients(outputs: Sequence[Tensor], dys: Sequence[Array]) -> dict[Tensor, Array]:
    """Through the tape: {leaf: gradient}. One op takes all outputs and hands back to each its dy, so no other op is needed."""
    tracked = [(y, backend.read_only(dy)) for y, dy in zip(outputs, dys, strict=True) if y.requires_grad]
    if not tracked:
        return {}
    ys, dys = zip(*tracked, strict=True)
    end = Op(lambda *ys: (backend.array_module(ys[0]).zeros(()), lambda _: dys), ShapeRule(any_shape), None)
    return gradients(end(*ys))


def _change(after: np.ndarray, before: np.ndarray) -> np.ndarray:
    """after - before, where what stays infinite has not changed."""
    return np.subtract(after, before, out=np.zeros_like(after), where=after != before)


def _same(name: str, outputs: Sequence[Tensor], again: Sequence[Tensor]) -> None:
    for a, b in zip(outputs, again, strict=True):
        if not np.array_equal(backend.to_host(a.array), backend.to_host(b.array), equal_nan=True):
            raise GradcheckError(f"gradcheck {name}: two calls gave different values, so nudges tell nothing; "
                                 f"draw random numbers outside and pass them in (a dropout mask, a seed)")


def _like(x: np.ndarray, like: Array) -> Array:
    return backend.to_device(np.asarray(x, "float64"), backend.device_of(like).name)


def _unit(shape: tuple[int, ...], k: int) -> np.ndarray:
    e = np.zeros(shape)
    e.flat[k] = 1
    return e


def _unit_length(direction: np.ndarray) -> np.ndarray:
    return direction / np.linalg.norm(direction)
