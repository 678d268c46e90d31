"""Keep a training run: a checkpoint now and then, its measurements as JSON lines, and a good end at Ctrl-C.

    keeper = Keeper("out/my_run", model, optimizer, config={"lr": 1e-3, "seed": 0})
    history = keeper.start(resume=False)
    with keeper:
        train(model, batches, optimizer, steps=1000, history=history, after_step=keeper)

Read next: `examples/train_language_model.py`; `docs/running.md` explains it to those who run it.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from .carried import Carried
from .checkpoint import load_run, save_run, write
from .history import NATS_PER_BIT, History
from .nn import Module
from .optim import Optimizer


class Keeper:
    """Writes PLACE.checkpoint and PLACE.jsonl while training goes on; give it to `train` as `after_step`.

    Args:
        config: the options that decide the numbers; only a run with the same ones can be resumed.
        every: so many steps from one checkpoint to the next. There is always one at the start, at the end and at Ctrl-C.

    `stopped` tells whether Ctrl-C ended the training: the step in progress was finished and a checkpoint written.
    """

    def __init__(self, place: str | os.PathLike[str], model: Module, optimizer: Optimizer, *, config: Mapping[str, Any],
                 every: int = 200) -> None:
        if every < 1:
            raise ValueError(f"Keeper: every must be 1 step or more, got {every}")
        self.place, self.every, self.config = Path(place), every, config
        self.checkpoint, self.metrics = self._named("checkpoint"), self._named("jsonl")
        self.model, self.optimizer = model, optimizer
        self.history, self.saved, self.stopped = History(), 0, False

    def _named(self, suffix: str) -> Path:
        return self.place.with_name(f"{self.place.name}.{suffix}")

    def start(self, resume: bool = False) -> History:
        """Start anew, and put aside what an earlier run left in this place; or put the saved run back. Its history so far."""
        if resume:
            resumed = load_run(self.checkpoint, self.model, self.optimizer, config=self.config)
            self.history, self.saved = resumed.history, len(resumed.history.loss)
            if isinstance(self.model, Carried):
                self.model.restore(resumed.extra)
            for remark in resumed.remarks:
                print(f"note: {remark}", file=sys.stderr)
        else:
            self._put_aside()
            self.save()     # now, so that what cannot be written is known before hours of work
        write(self.metrics, "".join(map(self.line, range(self.saved))).encode())    # what came after the checkpoint comes again
        for file in self.place.parent.iterdir():
            if file.suffix == ".part" and file.name.startswith((f"{self.checkpoint.name}.", f"{self.metrics.name}.")):
                file.unlink(missing_ok=True)
        return self.history

    def _put_aside(self) -> None:
        old = [path for path in (self.checkpoint, self.metrics) if path.exists()]
        free = next(n for n in count(1) if not any(self._named(f"{n}{path.suffix}").exists() for path in old))
        for path in old:
            print(f"an earlier run was there; moved to {path.rename(self._named(f'{free}{path.suffix}'))}", file=sys.stderr)

    def save(self) -> None:
        """Write the checkpoint now."""
        extra = self.model.extra() if isinstance(self.model, Carried) else None
        save_run(self.checkpoint, self.model, self.optimizer, self.history, config=self.config, extra=extra)
        self.saved = len(self.history.loss)

    def line(self, step: int) -> str:
        """What was measured at a step, as one line of strict JSON: null stands for a number that is not finite."""
        h = self.history
        numbers = {"loss": h.loss[step], "bits": h.loss[step] / NATS_PER_BIT, "grad_norm": h.grad_norm[step], "lr": h.lr[step],
                   "symbols": h.symbols_at[step], "seconds": h.seconds_at[step]}
        seen = {"recorded": h.recorded[step]} if step in h.recorded else {}
        return json.dumps({"step": step, **finite({**numbers, **seen})}) + "\n"

    def __call__(self, history: History) -> bool:
        self.history = history
        done = len(history.loss)
        self.file.write(self.line(done - 1))
        self.file.flush()
        if done % self.every == 0:
            self.save()
        return self.stopped

    def __enter__(self) -> Keeper:
        self.file = open(self.metrics, "a", encoding="utf-8")
        self.before = signal.getsignal(signal.SIGINT)
        self.listens = current_thread() is main_thread() and self.before not in (signal.SIG_IGN, None)
        if self.listens:
            signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        self.file.close()
        if kind is None and self.saved < len(self.history.loss):
            self.save()
        if self.listens:
            signal.signal(signal.SIGINT, self.before)

    def _interrupted(self, *_: object) -> None:
        self.stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.write(2, b"\nstopping after this step; Ctrl-C again stops at once\n")   # print may have been interrupted itself


def finite(numbers: Any) -> Any:
    """Numbers, by name, as strict JSON can hold them: None for NaN and the infinities."""
    if isinstance(numbers, dict):
        return {name: finite(number) for name, number in numbers.items()}
    return numbers if numbers is not None and math.isfinite(numbers) else None


def resume_command() -> str:
    """The command line that goes on with the run of this program."""
    return shlex.join(sys.orig_argv + ["--resume"] * ("--resume" not in sys.argv))
