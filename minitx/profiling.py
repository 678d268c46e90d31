"""Where did the time and the memory go? A table of the ops of a step, forward and backward; and one of the modules of a model.

    with minitx.profile() as p:
        model.loss(ids, targets).backward()
    print(p.table())
    print(by_module(model, ids))        # parameters and arithmetic

Both are observers: they stand around op calls and change nothing. What the first does not show is the time between ops, which
is the tape's and Python's.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import backend
from .nn import Module
from .observer import Observer, observe
from .op import OPS, Op
from .options import kind
from .saved import saved
from .tensor import no_grad


@dataclass
class Row:
    """What one op did in all its calls."""

    op: str
    calls: int = 0
    forward: float = 0.0        # seconds
    backward: float = 0.0
    saved: int = 0              # bytes kept from forward to backward; an array that two calls keep counts twice
    flops: int = 0              # of matrix products, forward and backward: two for each multiplication and addition


def flops(op: str, given: dict[str, Any]) -> int:
    """The arithmetic of an op's matrix products going forward; going back there is twice as much, a product for each factor.

    Causal attention multiplies the pairs that may not be seen too, and they count; flash_attention passes over them, and they
    do not. (Of its tiles across the diagonal half is wasted: that is not counted.) What it makes a second time: `again`.
    """
    if op == "linear":
        return 2 * math.prod(given["x"].shape) * given["W"].shape[1]
    if op == "matmul":
        x, y = given["x"].shape, given["y"].shape
        batch = math.prod(max(a, b) for a, b in zip(_leading(x, y), _leading(y, x), strict=True))
        return 2 * batch * math.prod(x[-2:]) * (y[-1] if len(y) > 1 else 1)
    if op in ("attention", "flash_attention"):
        return 2 * _pairs(op, given) * (given["q"].shape[3] + given["v"].shape[3])
    if "U" in given:            # a recurrent cell or sequence: h U for every row, and x W unless that was done before
        rows = math.prod(given["x" if "x" in given else "a"].shape[:-1])
        return 2 * rows * (given["U"].size + (given["W"].size if "W" in given else 0))
    return 0


def again(op: str, given: dict[str, Any]) -> int:
    """The arithmetic that an op does on its way back besides: flash_attention kept no scores, and makes them again."""
    return 2 * _pairs(op, given) * given["q"].shape[3] if op == "flash_attention" else 0


def _pairs(op: str, given: dict[str, Any]) -> int:
    """How many queries meet keys, in all heads."""
    (B, N, Tq, _), Tk = given["q"].shape, given["k"].shape[2]
    if op == "flash_attention" and given.get("causal"):         # the last queries see the most: 1, 2, ... or Tk - Tq + 1, ...
        last = min(Tq, Tk)
        return B * N * (last * (Tk - last) + last * (last + 1) // 2)
    return B * N * Tq * Tk


def _leading(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The axes in front of the last two, as many as the longer of two shapes has."""
    return (1,) * (max(len(shape), len(other), 2) - max(len(shape), 2)) + shape[:-2]


def named(op: Op, arrays: Sequence[Any], static: dict[str, Any]) -> dict[str, Any]:
    """What an op was called with, by name."""
    return dict(zip(op.names(len(arrays)), arrays, strict=True)) | static


class Profile(Observer):
    """The rows of a table, by op."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def around(self, op: Op, vjp: Callable) -> Callable:
        row = self.rows.setdefault(op.name, Row(op.name))

        def timed(*arrays: Any, **static: Any) -> tuple[Any, Callable]:
            start = time.perf_counter()
            out, backward = vjp(*arrays, **static)
            wait(out)
            row.forward += time.perf_counter() - start
            row.calls += 1
            row.saved += sum(kept.bytes for kept in saved(backward))
            own = OPS.get(op.name) is op        # of a user's op we know nothing
            given = named(op, arrays, static)
            work, more = (flops(op.name, given), again(op.name, given)) if own else (0, 0)
            row.flops += work

            def timed_backward(*dys: Any) -> Any:
                start = time.perf_counter()
                dxs = backward(*dys)
                wait(dxs)
                row.backward += time.perf_counter() - start
                row.flops += 2 * work + more
                return dxs

            return out, timed_backward

        return timed

    def table(self) -> str:
        """The rows, most time first, and their sum."""
        rows = sorted(self.rows.values(), key=lambda r: -(r.forward + r.backward))
        columns = ("calls", "forward", "backward", "saved", "flops")
        total = Row("all", *(sum(getattr(r, name) for r in rows) for name in columns))
        seconds = total.forward + total.backward or 1.0
        lines = [f"{'op':<18}{'calls':>7}{'forward ms':>12}{'backward ms':>13}{'share':>7}{'saved MB':>10}"
                 f"{'GFLOP':>9}{'GFLOP/s':>9}"]
        for r in [*rows, total]:
            both = r.forward + r.backward
            lines.append(f"{r.op:<18}{r.calls:>7}{1e3 * r.forward:>12.2f}{1e3 * r.backward:>13.2f}{both / seconds:>7.0%}"
                         f"{r.saved / 1e6:>10.2f}{r.flops / 1e9:>9.3f}{r.flops / 1e9 / both if both else 0:>9.1f}")
        return "\n".join(lines)

    __repr__ = __str__ = table


def wait(arrays: Any) -> None:
    """Until the device has computed them; only then is the clock right."""
    for x in arrays if isinstance(arrays, (tuple, list)) else (arrays,):
        if backend.is_array(x):
            backend.device_of(x).synchronize()
            return


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """Measure every op call inside the block.

    >>> with profile() as p:
    ...     y = ops.exp(mx.tensor([1.0, 2.0]))
    >>> p.rows["exp"].calls, p.rows["exp"].saved
    (1, 8)
    """
    with observe(Profile()) as p:
        yield p


class Share(NamedTuple):
    """What one module has and does, all modules below it included."""

    kind: str
    parameters: int
    flops: int          # of matrix products, forward


class Shares(dict[str, Share]):
    """By path; prints as a table."""

    def __str__(self) -> str:
        width = max(map(len, ("module", *self)))
        lines = [f"{'module':<{width}}  {'':<20}{'parameters':>14}{'forward FLOP':>18}"]
        return "\n".join(lines + [f"{path:<{width}}  {kind:<20}{parameters:>14,}{flops:>18,}"
                                  for path, (kind, parameters, flops) in self.items()])


class Inside(Observer):
    """Adds up, for every module, the FLOPs of what happens while it runs."""

    def __init__(self) -> None:
        self.running: list[Module] = []
        self.flops: Counter[Module] = Counter()

    def module(self, module: Any, forward: Callable) -> Callable:
        def entered(*args: Any, **options: Any) -> Any:
            self.running.append(module)
            try:
                return forward(*args, **options)
            finally:
                self.running.pop()
        return entered

    def around(self, op: Op, vjp: Callable) -> Callable:
        def counted(*arrays: Any, **static: Any) -> Any:
            if OPS.get(op.name) is op:
                work = flops(op.name, named(op, arrays, static))
                self.flops.update(dict.fromkeys(self.running, work))
            return vjp(*arrays, **static)
        return counted


def by_module(model: Module, *inputs: Any) -> Shares:
    """How many parameters each module of a model has, and how much arithmetic it does for these inputs: {path: share}.

    Counted are the matrix products of `model(*inputs)`, two FLOP for each multiplication and addition; going back there are
    twice as many. A parameter that two modules use counts in both, and once in what contains them.

    >>> print(by_module(mx.nn.Linear(3, 2), mx.tensor([[1.0, 2, 3]])))
    module                          parameters      forward FLOP
            Linear                           8                12
    """
    kind("by_module", Module, "give a model", model=model)
    with observe(Inside()) as inside, no_grad(), model.evaluating():
        model(*inputs)
    return Shares({path: Share(type(module).__name__, module.count_parameters(), inside.flops[module])
                   for path, module in model.named_modules()})
