"""gradcheck: compare a backward, written by hand, with what small nudges of the inputs do.

For a function y = f(x) and a *random* gradient dy of its output, the backward claims dx = dy · ∂y/∂x. Moving one element
of x by ±step changes dy · y by ±step · dx_i, up to step²; that is the other number. The gradient of the output must be
random: with ones, `out.sum()`, a softmax whose backward returns zeros passes every check, because its rows always sum to one.

Small inputs are checked element by element, large ones along random directions.

Read next: `docs/gradient_checks.md`, the contract that every op of minitx is held to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import backend
from .backend import Array
from .contract import ShapeRule, any_shape
from .op import Op
from .options import number, whole
from .tape import gradients
from .tensor import Tensor, no_grad

ELEMENTWISE = 400       # inputs of up to this size are checked element by element
DIRECTIONS = 8          # larger ones along this many random directions
CLEAR = 1e-3            # from this size on a gradient is clearly not zero, and its relative error means something


class GradcheckError(AssertionError):
    """A gradient that the nudges contradict; the message names function, input, index and both numbers."""


@dataclass
class InputReport:
    """One input: how many numbers were compared, and the worst pair among them."""

    name: str
    shape: tuple[int, ...]
    compared: int = 0
    worst: float = 0.0              # |ours - nudged| / (atol + rtol max(|ours|, |nudged|)): above 1 is a failure
    where: str = "nowhere"
    ours: float = 0.0
    nudged: float = 0.0
    scale: float = 0.0              # the largest |gradient| seen
    relative: float = 0.0           # the largest relative error, of gradients above CLEAR
    kink: float = 0.0               # of a failure that a kink explains: how much the slopes on its two sides differ


@dataclass
class GradcheckReport:
    """What was checked. Truthy, prints as a table."""

    function: str
    inputs: list[InputReport] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"gradcheck {self.function}: ok"]
        for i in self.inputs:
            rows.append(f"  {i.name:<14} {i.shape!s:<16} {i.compared:>5} compared   largest |gradient| {i.scale:.3g}   "
                        f"worst error {abs(i.ours - i.nudged):.1e} at {i.where}")
        return "\n".join(rows)

    __repr__ = __str__


class Precision(NamedTuple):
    """How far to nudge, and how much may differ."""

    step: float
    rtol: float
    atol: float

    def allowed(self, ours: float, nudged: float) -> float:
        return self.atol + self.rtol * max(abs(ours), abs(nudged))


def gradcheck(fn: Callable, *inputs: Any, step: float = 1e-5, rtol: float = 1e-6, atol: float = 1e-8, seed: int = 0,
              parameters: bool = True, **static: Any) -> GradcheckReport:
    """Check the gradients of `fn(*inputs, **static)` by every float input, in float64, with random output gradients.

    Args:
        fn: an op, a module, or any function of Tensors that returns a Tensor or several. The parameters of a module
            (what its `named_parameters()` gives) are checked too, unless `parameters=False`.
        inputs: Tensors or arrays. Float ones become float64 and are checked, others are passed on.
        step: how far to nudge; the nudge is off by about step² times the third derivative, plus 1e-16/step times the value.
        rtol, atol: pass when |ours - nudged| ≤ atol + rtol · max(|ours|, |nudged|).
        seed: of the random output gradients and directions.

    Returns a report. Raises GradcheckError, an AssertionError, naming function, input, index and both numbers; a kink
    within `step` of an element is told apart from a wrong backward. `fn` must give the same values when called again.

    >>> bool(gradcheck(ops.softmax, np.array([[1.0, 2.0, 3.0]])))
    True
    """
    if not callable(fn):
        raise TypeError(f"gradcheck: fn is a {type(fn).__name__}; expected an op, a module or a function of Tensors")
    number("gradcheck", 1e-300, step=step)
    number("gradcheck", 0, rtol=rtol, atol=atol)
    whole("gradcheck", 0, seed=seed)
    name, rng = getattr(fn, "name", getattr(fn, "__name__", type(fn).__name__)), np.random.default_rng(seed)
    leaves = [_promoted(x) for x in inputs]
    weights = list(fn.named_parameters()) if parameters and hasattr(fn, "named_parameters") else []
    checked = [(arg, t) for arg, t in [*zip(_names(fn, len(inputs)), leaves, strict=True), *weights]
               if isinstance(t, Tensor) and t.requires_grad]
    starts = [backend.to_host(leaf.array).copy() for _, leaf in checked]
    if not checked:
        raise ValueError(f"gradcheck {name}: none of the {len(inputs)} inputs has floating point numbers; nothing to check")
    if narrow := [f"{arg} is {t.dtype}" for arg, t in weights if t.dtype != "float64"]:
        raise ValueError(f"gradcheck {name}: parameter {narrow[0]}, too coarse for nudges; "
                         f"build the module with dtype='float64'")

    def run() -> list[Tensor]:
        outputs = _flat(fn(*leaves, **static))
        if not all(isinstance(y, Tensor) for y in outputs):
            raise TypeError(f"gradcheck {name}: the function must return Tensors, got {[type(y).__name__ for y in outputs]}")
        return [y for y in outputs if y.dtype.kind == "f"]

    def value() -> np.ndarray:
        """The terms of Σ dy · y, whose change is what the backward predicts."""
        with no_grad():
            return np.concatenate([(backend.to_host(y.array) * backend.to_host(dy)).ravel()
                                   for y, dy in zip(run(), dys, strict=True)])

    outputs = run()
    _untouched(name, "forward", checked, starts)
    _reproducible(name, outputs, run())
    dys = [_like(rng.standard_normal(y.shape), y.array) for y in outputs]
    ours = _gradients(outputs, dys)
    _untouched(name, "backward", checked, starts)

    report = GradcheckReport(name)
    for (arg, leaf), start in zip(checked, starts, strict=True):
        dx = backend.to_host(ours[leaf]) if leaf in ours else np.zeros(leaf.shape)
        report.inputs.append(_check_input(arg, leaf, start, dx, value, Precision(step, rtol, atol), rng))
        if report.inputs[-1].worst > 1:
            raise GradcheckError(_explain(name, report.inputs[-1], Precision(step, rtol, atol)))
    return report


def _check_input(arg: str, leaf: Tensor, start: np.ndarray, dx: np.ndarray, value: Callable[[], np.ndarray],
                 precision: Precision, rng: np.random.Generator) -> InputReport:
    """Nudge one input, element by element or along random directions, and compare."""
    report = InputReport(arg, leaf.shape, scale=float(np.abs(dx).max(initial=0)))
    before = value()

    def slopes(direction: np.ndarray, step: float) -> tuple[float, float]:
        """Of Σ dy · y, going forwards and going backwards. What stays infinite has not changed."""
        changes = []
        for by in (step, -step):
            leaf.array[...] = _like(start + by * direction, leaf.array)
            after = value()
            changes.append(np.subtract(after, before, out=np.zeros_like(after), where=after != before).sum() / by)
        return changes[0], changes[1]

    try:
        for where, direction in _directions(leaf.shape, rng):
            ours, nudged = float((dx * direction).sum()), float(np.mean(slopes(direction, precision.step)))
            worst = abs(ours - nudged) / precision.allowed(ours, nudged) if np.isfinite([ours, nudged]).all() else np.inf
            report.compared += 1
            if abs(ours) > CLEAR:
                report.relative = max(report.relative, abs(ours - nudged) / max(abs(ours), abs(nudged)))
            if worst > report.worst or report.compared == 1:
                report.worst, report.where, report.ours, report.nudged = worst, arg + where, ours, nudged
                worst_direction = direction
        if report.worst > 1:
            slack = precision.allowed(report.ours, report.nudged)
            right, left = slopes(worst_direction, precision.step)
            between = min(left, right) - slack <= report.ours <= max(left, right) + slack
            half = np.subtract(*slopes(worst_direction, precision.step / 2))        # of a smooth curve: half of right - left
            if between and abs(half - (right - left) / 2) > 0.1 * abs(right - left):
                report.kink = abs(right - left)
    finally:
        leaf.array[...] = _like(start, leaf.array)
    return report


def _directions(shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """(where, direction of length 1): every element on its own, or all at once in random directions."""
    if np.prod(shape) > ELEMENTWISE:
        for _ in range(DIRECTIONS):
            direction = rng.standard_normal(shape)
            yield ", along a random direction", direction / np.linalg.norm(direction)
    else:
        for index in np.ndindex(shape):
            direction = np.zeros(shape)
            direction[index] = 1
            yield f"[{', '.join(map(str, index))}]", direction


def _explain(fn: str, report: InputReport, precision: Precision) -> str:
    ours, nudged = report.ours, report.nudged
    message = (f"gradcheck {fn}: the gradient of {report.where} is {ours:.10g} by backward, {nudged:.10g} by nudging "
               f"(difference {abs(ours - nudged):.2e}, allowed {precision.allowed(ours, nudged):.2e})")
    if report.kink:
        return (f"{message}. The function has a kink within step = {precision.step:g} of this point (its slopes on the "
                f"two sides differ by {report.kink:.3g}), where no gradient is right: check at another point or with a "
                f"smaller step")
    if not np.isfinite(nudged):
        return f"{message}. A nudge of {precision.step:g} leaves the function's domain; check elsewhere, or with a smaller step"
    if ours == 0:
        return f"{message}. Backward says that this element has no influence: is its gradient returned at all?"
    for ratio, cause in (-1, "a sign is flipped"), (2, "a factor 2 is missing"), (0.5, "a factor 2 too much, or counted twice"):
        if abs(nudged / ours - ratio) < 1e-4:
            return f"{message}. Their ratio is {nudged / ours:.6g}: {cause}?"
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


def _flat(out: Any) -> list[Tensor]:
    """The Tensors that a function returned: one, several, or nested as those of an LSTM are, hs, (h, c)."""
    return [y for part in out for y in _flat(part)] if isinstance(out, (tuple, list)) else [out]


def _promoted(x: Any) -> Any:
    """A float64 leaf of its own for every array of floats; everything else as it is."""
    array = x.array if isinstance(x, Tensor) else np.asarray(x) if isinstance(x, np.generic) else x
    if not backend.is_array(array) or array.dtype.kind != "f":
        return x
    return Tensor(array.astype("float64", copy=True), requires_grad=True)


def _gradients(outputs: Sequence[Tensor], dys: Sequence[Array]) -> dict[Tensor, Array]:
    """Through the tape: {leaf: gradient}. One op takes all outputs and hands each its dy, so no other op is needed."""
    tracked = [(y, backend.read_only(dy)) for y, dy in zip(outputs, dys, strict=True) if y.requires_grad]
    if not tracked:
        return {}
    end = Op(lambda *ys: (backend.array_module(ys[0]).zeros(()), lambda _: [dy for _, dy in tracked]),
             ShapeRule(any_shape), None)
    return gradients(end(*[y for y, _ in tracked]))


def _untouched(fn: str, way: str, checked: Sequence[tuple[str, Tensor]], starts: Sequence[np.ndarray]) -> None:
    for (arg, leaf), start in zip(checked, starts, strict=True):
        if not np.array_equal(backend.to_host(leaf.array), start, equal_nan=True):
            raise GradcheckError(f"gradcheck {fn}: its {way} pass wrote into the input {arg}; make a new array instead")


def _reproducible(fn: str, outputs: Sequence[Tensor], again: Sequence[Tensor]) -> None:
    if {str(y.dtype) for y in outputs} != {"float64"}:
        raise ValueError(f"gradcheck {fn}: expected outputs in float64, like the inputs, got "
                         f"{[str(y.dtype) for y in outputs] or 'integers'}; nudges need all its digits")
    for a, b in zip(outputs, again, strict=True):
        if not np.array_equal(backend.to_host(a.array), backend.to_host(b.array), equal_nan=True):
            raise GradcheckError(f"gradcheck {fn}: two calls gave different values, so nudges tell nothing; "
                                 f"draw random numbers outside and pass them in (a dropout mask, a seed)")


def _like(x: np.ndarray, like: Array) -> Array:
    return backend.to_device(np.asarray(x, "float64"), backend.device_of(like).name)
