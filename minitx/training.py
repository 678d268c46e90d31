"""The training loop and the evaluation.

    forward → loss → backward → clip → step, again and again; everything else here is about telling how it goes, and about
    stopping well: at a number that is not finite, at Ctrl-C, at a kill.

Read next: `checkpoint.py` and `runs.py`, then `examples/train_language_model.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any

from .backend import Array, expecting_overflow, to_device
from .clipping import clip_grad_norm, squared_length
from .history import NATS_PER_BIT, History
from .memory import keep_freed_memory
from .models import Model
from .optim import Optimizer
from .options import kind, whole
from .progress import Progress
from .shards import Batch, Shards, checked, counted
from .tensor import Tensor, no_grad
from .waits import in_one_wait


def train(model: Model, batches: Iterable[Batch], optimizer: Optimizer, *, steps: int,
          schedule: Callable[[int], float] | None = None, clip: float | None = 1.0, accumulate: int = 1,
          on_nonfinite: str = "stop", history: History | None = None,
          after_step: Callable[[History], bool | None] | None = None, record: Any = None, threads: int | None = None,
          keep_memory: bool = True, title: str | None = "train") -> History:
    """Train a model until `steps` steps are done. A batch is a tuple of arrays, what `model.loss` takes, the targets last:
    for a language model `(ids, targets)`, both (B, T).

    Args:
        schedule: the learning rate of each step, from 0 on; without it the optimiser's own.
        clip: the largest length of the gradient, that by all that the optimiser moves; None measures it and lets it be.
        accumulate: how many batches make one step. Their gradients are weighted by their number of symbols, so the step is that
            of one large batch; padding counts for nothing. When the batches end within a step, those that are left make it.
        on_nonfinite: "stop" raises FloatingPointError naming step, parameter and remedy; "record" notes the event in the
            history and goes on, for experiments that mean to blow up. Either way that step moves no parameter.
        history: of the steps that are done already, when a run is resumed; `batches` then start after those.
        after_step: called with the history after every step; when it returns True, training ends there.
        record: what `minitx.record(model)` returned. It looks into every `record.every`-th step, from step 0 on, and its
            `summary()` goes into the history; gradients are those before clipping.
        threads: on how many a batch is shared out (`shards.py`), in a resumed run by default as many as before. None chooses.
        keep_memory: tell the allocator of this process to keep freed memory (`memory.py`): up to a third faster, where it can.
        title: what the progress bar is called; None tells nothing on the way.

    Returns what was measured.
    """
    _checked_options(model, optimizer, steps, schedule, accumulate, on_nonfinite, after_step, record, threads)
    if keep_memory:
        keep_freed_memory()
    model.train()
    history = history or History()
    threads = history.threads if threads is None and model.divisible else threads
    done, start = len(history.loss), time.perf_counter() - history.seconds
    names = {p: name for name, p in model.named_parameters()}
    groups = islice(_groups(batches, accumulate), max(steps - done, 0))
    with Progress(steps, title, done) as bar, Shards(model, threads) as shards:
        history.threads = shards.threads
        for step, group in enumerate(groups, done):
            if schedule:
                optimizer.lr = schedule(step)
            look = record is not None and step % record.every == 0
            with expecting_overflow(), record if look else nullcontext():   # what is not finite is found and told
                loss, norm, trouble = _step(shards, names, group, optimizer, math.inf if clip is None else clip)
            if trouble and on_nonfinite == "stop":
                raise FloatingPointError(f"train: step {step}: {trouble}, and nothing was changed by this step; lower the "
                                         f"learning rate (it was {optimizer.lr:g}) or clip the gradient")
            if trouble:
                history.events.append((step, trouble))
            if look:
                history.recorded[step] = record.summary()
            history.loss.append(loss)
            history.grad_norm.append(norm)
            history.lr.append(optimizer.lr)
            history.symbols_at.append(history.symbols + shards.symbols)
            history.seconds_at.append(time.perf_counter() - start)
            bar.update(history)
            if after_step and after_step(history):
                return history
    if len(history.loss) < steps:
        raise ValueError(f"train: the batches ended after {len(history.loss)} of {steps} steps; "
                         f"give {accumulate} for every step")
    return history


def _checked_options(model: Any, optimizer: Any, steps: Any, schedule: Any, accumulate: Any, on_nonfinite: Any, after_step: Any,
                     record: Any, threads: Any) -> None:
    """Raise an error in the name of `train` unless all of its options make sense."""
    kind("train", Model, "give one of minitx.models, or a class of your own that derives from it", model=model)
    kind("train", Optimizer, "give one of minitx.optim", optimizer=optimizer)
    if not set(model.parameters()) & set(optimizer.parameters):
        raise ValueError(f"train: the {type(optimizer).__name__} moves no parameter of this {type(model).__name__}; "
                         f"make it with model.parameters(), after the last change of a module")
    whole("train", 0, steps=steps)
    whole("train", accumulate=accumulate)
    if threads is not None:
        whole("train", threads=threads)
    for name, function in (("schedule", schedule), ("after_step", after_step)):
        if function is not None and not callable(function):
            raise TypeError(f"train: {name} is a {type(function).__name__}; expected a function, or None")
    if record is not None and not hasattr(record, "summary"):
        raise TypeError(f"train: record is a {type(record).__name__}; expected a recorder, minitx.record(model), or None")
    if record is not None and record.model is not model:
        raise ValueError(f"train: record belongs to another model, a {type(record.model).__name__}; "
                         f"make it of the one that is trained, minitx.record(model)")
    if on_nonfinite not in ("stop", "record"):
        raise ValueError(f"train: on_nonfinite must be 'stop' or 'record', got {on_nonfinite!r}")


def _groups(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Lists of `size` batches; the last may be shorter."""
    iterator = iter(batches)
    while group := list(islice(iterator, size)):
        yield [checked("train", batch) for batch in group]


def _step(shards: Shards, names: dict[Tensor, str], group: list[Batch], optimizer: Optimizer,
          clip: float) -> tuple[float, float, str | None]:
    """One step on a group of batches: the loss, the length of the gradient, and what was not finite (then nothing moves).

    Measured and clipped is what the optimiser moves. Other parameters of the model get gradients, too, for this step alone.
    """
    for p in (*names, *optimizer.parameters):
        p.grad = None
    value, squares = in_one_wait(lambda: (shards.backward(group), squared_length(optimizer.parameters)))
    if not math.isfinite(value):
        sizes = {name: float(abs(p.array).max()) for p, name in names.items() if p.size}
        name = max(sizes, key=lambda name: math.inf if math.isnan(sizes[name]) else sizes[name])
        return value, math.nan, f"the loss is {value} (the largest parameter is {name}, up to {sizes[name]:.3g})"
    try:
        moved = {names.get(p) or f"parameter {i}": p for i, p in enumerate(optimizer.parameters)}
        norm = clip_grad_norm(moved, clip, norm=math.sqrt(squares))
    except FloatingPointError as error:
        return value, math.inf, str(error).split(", and")[0]
    optimizer.step()
    return value, norm, None


@no_grad()
def evaluate(model: Model, batches: Iterable[Batch]) -> float:
    """Bits per symbol over all batches, each symbol counted once; dropout is off meanwhile. NaN if the model has blown up."""
    kind("evaluate", Model, "give one of minitx.models", model=model)
    device, nats, symbols = model.parameters()[0].device, 0.0, 0

    def loss(batch: Batch) -> list[Array]:
        return [model.loss(*[to_device(part, device) for part in batch]).array]

    with model.evaluating():
        for batch in (checked("evaluate", batch) for batch in batches):
            count = counted(batch)
            with expecting_overflow():
                nats += in_one_wait(partial(loss, batch))[0] * count
            symbols += count
    if not symbols:
        raise ValueError("evaluate: there was no batch with a symbol to predict; give one whose targets are not all padding")
    return nats / symbols / NATS_PER_BIT
