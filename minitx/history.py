"""What a training run measured, step by step.

Read next: `training.py`, which fills it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

NATS_PER_BIT = math.log(2)


@dataclass
class History:
    """What a training run measured at every step."""

    loss: list[float] = field(default_factory=list)             # nats per symbol, of the batch before the step
    grad_norm: list[float] = field(default_factory=list)        # before clipping
    lr: list[float] = field(default_factory=list)
    symbols_at: list[int] = field(default_factory=list)         # predicted by the end of each step
    seconds_at: list[float] = field(default_factory=list)       # of training by then
    events: list[tuple[int, str]] = field(default_factory=list)  # (step, what was not finite), with on_nonfinite="record"
    recorded: dict[int, dict] = field(default_factory=dict)     # step: summary of the recorder that `train` was given
    threads: int | None = None                                  # on which the batches were shared out

    @property
    def symbols(self) -> int:
        """How many symbols were predicted in all."""
        return self.symbols_at[-1] if self.symbols_at else 0

    @property
    def seconds(self) -> float:
        """How long the training took in all."""
        return self.seconds_at[-1] if self.seconds_at else 0.0

    @property
    def bits(self) -> list[float]:
        """The losses in bits per symbol."""
        return [loss / NATS_PER_BIT for loss in self.loss]

    def smooth_bits(self, last: int = 20) -> float:
        """The mean over the last steps: one batch is noisy."""
        recent = self.loss[-last:]
        return sum(recent) / len(recent) / NATS_PER_BIT

    def trouble(self) -> dict[str, int]:
        """Which of three events the run met, told apart, each with the step at which it began, the first in front:

            loss        a loss that was not finite
            gradient    a gradient that was not finite, though its loss was
            diverged    the last five finite losses have a mean above 1.1 times the first loss; since one first was above that
        """
        limit = 1.1 * self.loss[0] if self.loss else math.inf
        finite = {step: loss for step, loss in enumerate(self.loss) if math.isfinite(loss)}
        last = list(finite.values())[-5:]
        steps = {"loss": [step for step in range(len(self.loss)) if step not in finite],
                 "gradient": [step for step in finite if not math.isfinite(self.grad_norm[step])],
                 "diverged": [step for step, loss in finite.items() if loss > limit] if sum(last) > limit * len(last) else []}
        first = {event: of_event[0] for event, of_event in steps.items() if of_event}
        return dict(sorted(first.items(), key=lambda event: event[1]))
