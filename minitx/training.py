"""The training loop, with a progress bar that stays readable in a log file, and the evaluation.

    forward → loss → backward → clip → step, again and again; everything else here is telling how it goes.

Read next: `examples/train_language_model.py`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from .backend import to_device
from .models import LanguageModel
from .optim import Optimizer, clip_grad_norm
from .tensor import no_grad

NATS_PER_BIT = math.log(2)


@dataclass
class History:
    """What a training run measured at every step."""

    loss: list[float] = field(default_factory=list)             # nats per symbol, of the batch before the step
    grad_norm: list[float] = field(default_factory=list)        # before clipping
    lr: list[float] = field(default_factory=list)
    symbols: int = 0                                            # predicted so far
    seconds: float = 0.0

    @property
    def bits(self) -> list[float]:
        """The losses in bits per symbol."""
        return [loss / NATS_PER_BIT for loss in self.loss]

    def smooth_bits(self, last: int = 20) -> float:
        """The mean over the last steps: one batch is noisy."""
        recent = self.bits[-last:]
        return sum(recent) / len(recent)


def train(model: LanguageModel, batches: Iterable[tuple[Any, Any]], optimizer: Optimizer, *, steps: int,
          schedule: Callable[[int], float] | None = None, clip: float | None = 1.0, title: str = "train") -> History:
    """Train a language model for `steps` batches `(ids, targets)`, both (B, T).

    Args:
        schedule: the learning rate of each step, from 0 on; without it the optimiser's own.
        clip: the largest length of the gradient; None measures it and lets it be.

    Returns what was measured. Raises FloatingPointError when the loss or a gradient is not finite, naming the step.
    """
    model.train()
    named, device = dict(model.named_parameters()), model.parameters()[0].device
    history, bar = History(), Progress(steps, title)
    start = time.perf_counter()
    for step, (ids, targets) in zip(range(steps), batches, strict=False):
        if schedule:
            optimizer.lr = schedule(step)
        optimizer.zero_grad()
        loss = model.loss(to_device(ids, device), to_device(targets, device))
        value = float(loss)
        if not math.isfinite(value):
            raise FloatingPointError(f"train: the loss of step {step} is {value}, and nothing was changed by this step; "
                                     f"lower the learning rate (it was {optimizer.lr:g}) or clip the gradient")
        loss.backward()
        try:
            norm = clip_grad_norm(named, math.inf if clip is None else clip)
        except FloatingPointError as error:
            raise FloatingPointError(f"train: step {step}: {error}") from None
        optimizer.step()

        history.loss.append(value)
        history.grad_norm.append(norm)
        history.lr.append(optimizer.lr)
        history.symbols += targets.size
        history.seconds = time.perf_counter() - start
        bar.update(history)
    bar.close()
    if len(history.loss) < steps:
        raise ValueError(f"train: the batches ended after {len(history.loss)} of {steps} steps; give one for every step")
    return history


@no_grad()
def evaluate(model: LanguageModel, batches: Iterable[tuple[Any, Any]]) -> float:
    """Bits per symbol over all batches, each symbol counted once; dropout is off meanwhile."""
    was_training, device = model.training, model.parameters()[0].device
    model.eval()
    nats, symbols = 0.0, 0
    try:
        for ids, targets in batches:
            nats += float(model.loss(to_device(ids, device), to_device(targets, device))) * targets.size
            symbols += targets.size
    finally:
        model.train(was_training)
    if not symbols:
        raise ValueError("evaluate: there was no batch; give at least one")
    return nats / symbols / NATS_PER_BIT


class Progress:
    """A tqdm bar on a terminal; elsewhere, where a bar would fill the log, one line for every twentieth of the way."""

    def __init__(self, steps: int, title: str) -> None:
        self.steps, self.title, self.done = steps, title, 0
        self.bar = tqdm(total=steps, desc=title, unit="step") if sys.stderr.isatty() else None

    def update(self, history: History) -> None:
        self.done += 1
        status = (f"loss {history.loss[-1]:.3f}  {history.smooth_bits():.3f} bits/char  "
                  f"|grad| {history.grad_norm[-1]:.2f}  {history.symbols / history.seconds:,.0f} tokens/s")
        if self.bar is not None:
            self.bar.set_postfix_str(status, refresh=False)
            self.bar.update()
        elif self.done * 20 // self.steps > (self.done - 1) * 20 // self.steps:
            print(f"{self.title}  step {self.done}/{self.steps}  {status}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
