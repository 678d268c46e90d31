"""Truncated backprop through time: read a long text piece by piece, with a memory that goes on and gradients that do not.

    model = Carried(RecurrentLM(V, 64, 209))
    train(model, streams(ids, B, T), optimizer, steps=1000)

Read next: `training.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Any

from .backend import Array, array_module, to_device, to_host
from .models import LanguageModel, RecurrentLM
from .options import kind
from .tensor import Tensor


class Carried(LanguageModel):
    """A recurrent language model that reads on: each batch starts from the state in which the one before ended.

    Its rows must go on from batch to batch, as `data.streams` gives them. The state is carried as plain numbers, so backprop
    goes back to the start of the batch and no further: time and memory per step do not grow with what was read before. A batch
    that is as long as the text gives the full gradient.

    Train one and evaluate another, `evaluate(Carried(model), ...)`: each has a place of its own in a text. Where a state is
    not finite any more, the next batch starts from the first state again, as plain numbers too.

    Source  Williams & Peng 1990, An efficient gradient-based algorithm for on-line training of recurrent network trajectories
    """

    def __init__(self, model: RecurrentLM) -> None:
        kind("Carried", RecurrentLM, "give a minitx.models.RecurrentLM", model=model)
        self.model, self.state, self.context = model, None, None

    divisible = False                   # which state belongs to which row, only the whole batch says
    state: tuple[Array, ...] | None     # h, or h and c, (S, B, H) each; None: from the start

    def forward(self, ids: Any) -> Tensor:
        B, state, like = len(self.checked(ids)), None, self.parameters()[0]
        if self.state is not None:
            if self.state[0].shape[1] != B:
                raise ValueError(f"Carried: ids has {B} rows, and the state that is carried has {self.state[0].shape[1]}; give "
                                 f"batches with the same rows, as data.streams does, or forget() the state")
            state = [Tensor(to_device(a, like.device).astype(like.dtype, copy=False)) for a in self.state]
        logits, state = self.model.step(ids, state)
        xp, arrays = array_module(logits.array), [s.array for s in (state if isinstance(state, tuple) else (state,))]
        first = [s.array for s in self.model.recurrence.initial_states(B, None)]
        finite = reduce(and_, [xp.isfinite(a).all() for a in arrays])
        self.state = tuple(xp.where(finite, a, f) for a, f in zip(arrays, first, strict=True))      # and nobody waits to choose
        return logits

    def forget(self) -> None:
        """Start the next batch from the first state."""
        self.state = None

    def extra(self) -> dict[str, Array]:
        """The state as arrays on the host, for a checkpoint."""
        return {f"state.{k}": to_host(a).copy() for k, a in enumerate(self.state or ())}

    def restore(self, extra: Mapping[str, Array]) -> None:
        """Go on from the state of a checkpoint, or from the first state if it has none."""
        recurrence = self.model.recurrence
        names = [f"state.{k}" for k in range(len(recurrence.layer.states))]
        S, H = len(recurrence.layers), recurrence.layers[0].U.shape[0]
        if extra and (sorted(extra) != names or any(a.ndim != 3 or a.shape[::2] != (S, H) for a in extra.values())):
            given = ", ".join(f"{name} {array.shape}" for name, array in extra.items())
            raise ValueError(f"Carried: the checkpoint has {given}; expected {', '.join(names)} of shape ({S}, B, {H}); "
                             f"build the model as it was when saved")
        self.state = tuple(extra[name] for name in names) if extra else None
