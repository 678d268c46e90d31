"""Telling how a training run goes: a bar on a terminal, plain lines in a log file.

Read next: `training.py`.
"""

from __future__ import annotations

import sys

from tqdm import tqdm

from .history import History


class Progress:
    """A tqdm bar on a terminal; elsewhere, where a bar would fill the log, one line for every twentieth of the way. Without a
    title, nothing."""

    def __init__(self, steps: int, title: str | None, done: int = 0) -> None:
        self.steps, self.title, self.done = steps, title, done
        terminal = title is not None and sys.stderr.isatty()
        self.bar = tqdm(total=steps, initial=done, desc=title, unit="step") if terminal else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, history: History) -> None:
        """Show the step that has just been added to the history."""
        self.done += 1
        if self.title is None:
            return
        status = (f"loss {history.loss[-1]:.3f}  {history.smooth_bits():.3f} bits/symbol  "
                  f"|grad| {history.grad_norm[-1]:.2f}  {history.symbols / history.seconds:,.0f} tokens/s")
        if self.bar is not None:
            self.bar.set_postfix_str(status, refresh=False)
            self.bar.update()
        elif self.done * 20 // self.steps > (self.done - 1) * 20 // self.steps:
            print(f"{self.title}  step {self.done}/{self.steps}  {status}", file=sys.stderr, flush=True)
