"""The recorder: what a training step looks like from inside, by module path, time step and parameter.

    log = minitx.record(model)
    with log:
        model.loss(ids, targets).backward()
        optimizer.step()
    log["layers.0"]["dh"]           # (B, T, H): the gradient by the state after every time step
    print(log)                      # a table; log.plot.gradients() is a picture, log.text.gradients() one of letters

It is an observer. It copies what passes, where it passes, and changes nothing: no value, no gradient, no random draw.

Read next: `log.py`, what can be done with it; `docs/recording.md` shows how to look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .backend import Array, array_module, expecting_overflow, to_host
from .log import Log, Numbers
from .nn import Module
from .observer import Observer, observe
from .op import Op
from .options import kind, whole
from .recorded import Call, Run, length
from .tape import on_gradient
from .tensor import Tensor, tracking


class Recorder(Log, Observer):
    """A `Log` that is filled by the step inside `with log:`. Each block is a new step; the log holds the last one."""

    def __init__(self, model: Module, *, norms: bool = False, every: int = 1) -> None:
        kind("record", Module, "give a model, or any other module", model=model)
        whole("record", every=every)
        self.model, self.norms, self.every = model, norms, every
        self.steps, self.trouble, self.parameters, self._calls = 0, "", {}, {}
        self._block: Any = None             # in which it looks on, while the step is going on

    def __enter__(self) -> Recorder:
        if self._block is not None:
            raise RuntimeError("record: this recorder is recording already; make one for each thread and each block in a block")
        self.trouble, self.parameters, self._calls = "", {}, {}
        self._paths = {id(module): path for path, module in self.model.named_modules()}
        self._names = {p: path for path, p in self.model.named_parameters()}
        self._before = {p: p.array.copy() for p in self._names}
        self._gradients: dict[Tensor, Array] = {}
        self._inputs: list[tuple[Call, str, Tensor]] = []       # leaves that came in or went out, until the way back finds them
        self._active: list[Call] = []       # those that are going on, from the inside out
        self._way = object()                # the way forward up to the next backward pass
        self._block = observe(self)
        self._block.__enter__()
        return self

    def __exit__(self, _: Any, error: BaseException | None, trace: Any) -> None:
        self._block.__exit__(None, None, None)
        self._block = None
        self.steps += 1
        self.trouble = "" if error is None else " ".join(f"{type(error).__name__}: {error}".split())
        with expecting_overflow():
            self.parameters = self._measured()
        for calls in self._calls.values():
            for call in calls:
                call.close()
        del self._paths, self._names, self._before, self._gradients, self._inputs, self._active

    # What an observer sees

    def module(self, module: Any, forward: Callable) -> Callable:
        path = self._paths.get(id(module))
        if path is None:
            return forward

        def seen(*args: Any, **options: Any) -> Any:
            call = self._new_call(path)
            self._note(call, "input", first_tensor([*args, *options.values()]))
            self._active.insert(0, call)
            try:
                result = forward(*args, **options)
            finally:
                self._active.pop(0)
            self._note(call, "output", first_tensor([result]))
            return result
        return seen

    def watch(self, op: Op, arrays: Sequence[Any]) -> Callable[[str, Array, int | None], None]:
        call, run, now = self._run_of(op, arrays, "forward")

        def see(name: str, array: Array, step: int | None) -> None:
            if not (self.norms and name == "probs"):
                call.note(name, array, step if now is None else now, run)
        return see

    def output(self, op: Op, arrays: Sequence[Any], outputs: Sequence[Array]) -> Callable[[list[Array]], None] | None:
        """Of a cell on the tape: the gradients by the states that it returns are the dh and dc that a sequence shows."""
        states = [spec.name for spec in op.shapes.outputs]
        if not states or not all(state.endswith("_next") for state in states):
            return None
        call, run, now = self._run_of(op, arrays, "back")

        def report(dstates: list[Array]) -> None:
            for state, dstate in zip(states, dstates, strict=True):
                call.note(f"d{state.removesuffix('_next')}", dstate, now, run)
        return report

    def leaves(self, found: dict[Tensor, Array]) -> None:
        for p in self._names.keys() & found.keys():
            self._gradients[p] = self._gradients[p] + found[p] if p in self._gradients else found[p].copy()
        for call, name, leaf in self._inputs:
            if leaf in found:
                call.note(name, found[leaf])
        self._inputs = [waiting for waiting in self._inputs if waiting[2] not in found]
        self._way = object()

    # Where it goes

    def _new_call(self, path: str) -> Call:
        self._calls.setdefault(path, []).append(Call(self.norms, (*self._active, self._way)))
        return self._calls[path][-1]

    def _run_of(self, op: Op, arrays: Sequence[Any], way: str) -> tuple[Call, Run, int | None]:
        """The call that is going on, the run in it, and which of its steps this is. What runs outside of all modules, in the
        model's own `loss` say, belongs to the model itself, whose path is ""."""
        last = self._calls.get("", [])[-1:]
        outside = last if last and last[0].above[-1] is self._way else []
        call = (self._active or outside or [self._new_call("")])[0]
        run = call.run(op, arrays)
        run.steps[way] += 1
        return call, run, run.steps[way] - 1 if run.single else None

    def _note(self, call: Call, name: str, t: Tensor | None) -> None:
        """Keep a Tensor's numbers now, and its gradient when the way back passes."""
        if t is None:
            return
        call.note(name, t.array)
        if t.node is not None and tracking.get():
            on_gradient(t, lambda dt: call.note(f"d{name}", dt))
        elif t.requires_grad and tracking.get():
            self._inputs.append((call, f"d{name}", t))

    def _measured(self) -> dict[str, Numbers]:
        sizes: list[Array] = []
        for p, before in self._before.items():
            before = before.astype("float64")
            gradient = self._gradients.get(p, before)
            sizes += [length(before, None), length(gradient, None), length(p.array - before, None)]
        rows = to_host(array_module(sizes[0]).stack(sizes)).reshape(-1, 3).tolist() if sizes else []
        return {path: {"norm": size, "gradient": gradient if p in self._gradients else None,
                       "update": change / size if size else math.inf if change else 0.0}
                for (p, path), (size, gradient, change) in zip(self._names.items(), rows, strict=True)}


def first_tensor(values: Iterable[Any]) -> Tensor | None:
    """The first Tensor of floating point numbers among values, and in tuples, lists and dicts of them."""
    for value in values:
        if isinstance(value, tuple | list | dict):
            value = first_tensor(value.values() if isinstance(value, dict) else value)
        if isinstance(value, Tensor) and value.dtype.kind == "f":
            return value
    return None


def record(model: Module, *, norms: bool = False, every: int = 1) -> Recorder:
    """A recorder for the steps of a model: each `with log:` is one step, and the log holds the last one.

    Args:
        norms: keep only the lengths of the rows, so that a long run stays cheap.
        every: for `train(..., record=log)`: so many steps from one that is recorded to the next.

    >>> layer = mx.nn.Linear(2, 1, bias=False)
    >>> W = layer.W.assign_(np.array([[3.0], [4.0]], "float32"))
    >>> with record(layer) as log:
    ...     layer(mx.tensor([[1.0, 0.0]])).sum().backward()
    >>> log[""]["output"].tolist(), log[""]["doutput"].tolist(), log.parameters["W"]
    ([[3.0]], [[1.0]], {'norm': 5.0, 'gradient': 1.0, 'update': 0.0})
    """
    return Recorder(model, norms=norms, every=every)
