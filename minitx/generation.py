"""Let a language model write: sample one symbol, append it, ask again.

Read next: `examples/train_language_model.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .backend import expecting_overflow, stream, to_device, to_host
from .data.text import as_ids
from .models import LanguageModel
from .options import kind, number, whole
from .tensor import no_grad


def generate(model: LanguageModel, prompt: Sequence[int] | np.ndarray, count: int, *, temperature: float = 1.0,
             rng: np.random.Generator | None = None) -> Iterator[int]:
    """Continue `prompt` (ids) by `count` symbols, given one by one.

    Each is drawn from softmax(logits / temperature): 1 is what the model believes, below 1 it dares less, 0 takes the most
    likely symbol. A model with a limited context sees the last symbols that fit.
    """
    kind("generate", LanguageModel, "give one of minitx.models", model=model)
    ids = as_ids("generate", prompt).tolist()
    if not ids:
        raise ValueError("generate: the prompt is empty; give at least one id to continue from")
    whole("generate", 0, count=count)
    number("generate", 0, temperature=temperature)
    device, rng = model.parameters()[0].device, rng or stream()
    was_training = model.training
    model.eval()
    try:
        for _ in range(count):
            seen = np.array([ids[-model.context:] if model.context else ids])
            with no_grad(), expecting_overflow():       # scores that are not finite are found below
                logits = to_host(model(to_device(seen, device)).array[0, -1]).astype("float64")
            ids.append(_draw(logits, temperature, rng))
            yield ids[-1]
    finally:
        model.train(was_training)


def _draw(logits: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """One id from softmax(logits / temperature)."""
    if not np.isfinite(logits.max()):
        raise FloatingPointError(f"generate: the largest score of the model is {logits.max()}, so no symbol can be drawn; "
                                 f"its parameters have blown up: train it anew, with a lower learning rate")
    if temperature == 0:
        return int(logits.argmax())
    p = np.exp((logits - logits.max()) / temperature)
    return int(rng.choice(p.size, p=p / p.sum()))
