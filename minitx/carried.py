"""Truncated backprop through time: read a long text piece by piece, with a memory that goes on and gradients that do not.

    model = Carried(RecurrentLM(V, 64, 209))
    train(model, streams(ids, B, T), optimizer, steps=1000)

Read next: `training.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    not finite any more, the next batch starts from the first state again.

    Source  Williams & Peng 1990, An efficient gradient-based algorithm for on-line training of recurrent network trajectories
    """

    def __init__(self, model: RecurrentLM) -> None:
        kind("Carried", RecurrentLM, "give a minitx.models.RecurrentLM", model=model)
        self.model, self.state, self.context = model, None, None

    state: tuple[Array, ...] | None     # h, or h and c, (S, B, H) each; None: from the start

    def forward(self, ids: Any) -> Tensor:
        state = None if self.state is None else [Tensor(array) for array in self.state]
        logits, state = self.model.step(ids, state)
        arrays = tuple(s.array for s in (state if isinstance(state, tuple) else (state,)))
        finite = all(bool(array_module(a).isfinite(a).all()) for a in arrays)
        self.state = arrays if finite else None
        return logits

    def forget(self) -> None:
        """Start the next batch from the first state."""
        self.state = None

    def extra(self) -> dict[str, Array]:
        """The state as arrays on the host, for a checkpoint."""
        return {f"state.{k}": to_host(a).copy() for k, a in enumerate(self.state or ())}

    def restore(self, extra: Mapping[str, Array]) -> None:
        """Go on from the state of a checkpoint."""
        device = self.parameters()[0].device
        self.state = tuple(to_device(extra[name], device) for name in sorted(extra)) or None
