"""Let a language model write: read the prompt, then one symbol after the other, each of which is read in turn.

    generate          one text, symbol by symbol as they come
    generate_batch    several at once, from prompts of any lengths
    generate_best     the most likely ones that a beam finds

Every model reads on in its own way (`LanguageModel.read` and `step`): a recurrent one has its state, a Transformer a cache of
keys and values, any other reads all of its text again. What comes out is the same.

Read next: `decoding.py`, then `examples/generate.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .backend import Array, expecting_overflow, to_device, to_host
from .carried import Carried
from .data.padding import listed
from .data.text import as_ids
from .decoding import Hypothesis, beam_search
from .models import LanguageModel
from .nn.module import Module, evaluating
from .observer import observer
from .options import kind, whole
from .randomness import stream
from .sampling import check_finite, check_sampling, drawn
from .tensor import no_grad

Ids = Sequence[int] | np.ndarray
Stop = int | Collection[int] | Callable[[list[int]], bool] | None


def generate(model: LanguageModel, prompt: Ids, count: int, *, temperature: float = 1.0, top_k: int | None = None,
             top_p: float | None = None, stop: Stop = None, rng: np.random.Generator | None = None) -> Iterator[int]:
    """Continue `prompt` (ids) by up to `count` symbols, given one by one.

    Args:
        temperature, top_k, top_p: how a symbol is chosen, see `sampling.probabilities`; 0 takes the likeliest.
        stop: the symbol that ends a text, or several; it is not given out. Or a function of the ids written so far that says
            whether to end behind the last of them.
        rng: where the draws come from; the shared stream unless given.

    A model with a limited context reads the last symbols that fit. Until it is full every symbol is read once; from then on the
    window moves, all its positions change, and each further symbol costs a reading of the whole window.
    """
    columns = continuations("generate", model, [prompt], count, [rng], stop, temperature=temperature, top_k=top_k, top_p=top_p)
    return (symbol for [symbol] in columns if symbol is not None)


def generate_batch(model: LanguageModel, prompts: Sequence[Ids], count: int, *, temperature: float = 1.0,
                   top_k: int | None = None, top_p: float | None = None, stop: Stop = None,
                   rng: np.random.Generator | None = None) -> list[list[int]]:
    """Continue each of the prompts (ids, of any lengths) by up to `count` symbols, as `generate` does, all at the same time.

    Each text has draws of its own, seeded by `rng`: row b is `generate(..., rng=np.random.default_rng(seeds[b]))` with
    `seeds = rng.integers(2**63, size=B)`, whatever stands beside it, up to rounding.
    """
    prompts = listed("generate_batch", prompts)
    check_rng("generate_batch", rng)
    seeds = (rng or stream()).integers(2**63, size=len(prompts))
    columns = continuations("generate_batch", model, prompts, count, [np.random.default_rng(seed) for seed in seeds], stop,
                            temperature=temperature, top_k=top_k, top_p=top_p)
    written: list[list[int]] = [[] for _ in prompts]
    for column in columns:
        for row, symbol in zip(written, column, strict=True):
            if symbol is not None:
                row.append(symbol)
    return written


def generate_best(model: LanguageModel, prompts: Sequence[Ids], count: int, *, stop: int, width: int = 4,
                  alpha: float = 0.6) -> list[list[Hypothesis]]:
    """For each prompt the likeliest continuations of at most `count` symbols, the stop symbol included, that a beam finds.

    See `decoding.beam_search`. Prompt and continuation must fit into the context of the model.
    """
    texts = checked("generate_best", model, prompts)
    whole("generate_best", count=count)
    room = max(map(len, texts), default=1) + count - 1                      # the last symbol is not read
    if model.context is not None and room > model.context:
        raise ValueError(f"generate_best: the longest prompt and {count} symbols more need a context of {room}, and this model "
                         f"has {model.context}; give fewer")
    with at_rest([module for _, module in model.named_modules()]):
        return beam_search(lambda ids, reading: reading.step(ids), Reading.of(model, texts, room), [text[-1] for text in texts],
                           stop=stop, steps=count, width=width, alpha=alpha)


class Reading(NamedTuple):
    """How far a model has read in R texts: a state for `decoding.py`, which can go on with some of its rows."""

    model: LanguageModel
    state: Any
    device: str

    @classmethod
    def of(cls, model: LanguageModel, texts: Sequence[list[int]], room: int) -> Reading:
        """All of each text but the last symbol, which the first step reads."""
        return cls(model, model.read([np.array(text[:-1], np.int64) for text in texts], room), model.device)

    def step(self, ids: np.ndarray) -> tuple[Array, Reading]:
        """Read one symbol more in each row, ids (R): logits (R, V), and how far we are now."""
        logits, state = self.model.step(to_device(ids[:, None], self.device), self.state)
        return logits.array[:, -1], Reading(self.model, state, self.device)

    def select(self, rows: np.ndarray) -> Reading:
        return Reading(self.model, self.model.select(self.state, rows), self.device)


@contextlib.contextmanager
def at_rest(modules: Sequence[Module]) -> Iterator[None]:
    """How a model is asked: in evaluation, without a tape; scores that are not finite are found where one is chosen."""
    with evaluating(modules), no_grad(), expecting_overflow():
        yield


def continuations(caller: str, model: LanguageModel, prompts: Sequence[Ids], count: int,
                  rngs: Sequence[np.random.Generator | None], stop: Stop, **sampling: Any) -> Iterator[list[int | None]]:
    """What is written in each row, step by step: a symbol, or None where it has ended; till `count`, or till all have.

    What makes no sense is refused at once, and not when the first symbol is asked for.
    """
    texts = checked(caller, model, prompts)
    lengths = [len(text) for text in texts]
    whole(caller, 0, count=count)
    check_sampling(caller, **sampling)
    for rng in rngs:
        check_rng(caller, rng)
    symbols, over = stopping(caller, stop)

    def columns() -> Iterator[list[int | None]]:
        live, reading, window = [True] * len(texts), None, model.context
        write = model.writer() if len(texts) == 1 else None
        modules = [module for _, module in model.named_modules()]
        for _ in range(count if texts else 0):
            longest = max(map(len, texts))
            if reading is None or (window and longest > window):
                room = min(longest + count, window or longest + count)
                with at_rest(modules):
                    reading = Reading.of(model, [text[-window:] if window else text for text in texts], room)
            if write is not None and observer.get() is None:                    # an observer sees the model itself
                with expecting_overflow():
                    scores, state = write(texts[0][-1], reading.state)
                scores, reading = scores[None], Reading(model, state, reading.device)
            else:
                with at_rest(modules):
                    scores, reading = reading.step(np.array([text[-1] for text in texts]))
            column: list[int | None] = [None] * len(texts)
            for b, logits in enumerate(to_host(scores).astype("float64")):
                symbol = texts[b][-1]                                           # where a text has ended: anything
                if live[b]:
                    check_finite(caller, logits)
                    symbol = drawn(logits, rngs[b] or stream(), **sampling)
                    live[b] = symbol not in symbols
                    column[b] = symbol if live[b] else None
                texts[b].append(symbol)
                if over is not None and live[b]:
                    live[b] = not over(texts[b][lengths[b]:])
            yield column
            if not any(live):
                return

    return columns()


def checked(caller: str, model: LanguageModel, prompts: Sequence[Ids]) -> list[list[int]]:
    """The ids of all prompts, once the model is one that can write."""
    kind(caller, LanguageModel, "give one of minitx.models", model=model)
    if isinstance(model, Carried):
        raise TypeError(f"{caller}: model is a Carried, which would go on from the text that it read last; give carried.model")
    texts = [as_ids(caller, prompt).tolist() for prompt in listed(caller, prompts)]
    if not all(texts):
        raise ValueError(f"{caller}: the prompt is empty; give at least one id to continue from")
    return texts


def check_rng(caller: str, rng: np.random.Generator | None) -> None:
    if rng is not None:
        kind(caller, np.random.Generator, "give np.random.default_rng(seed)", rng=rng)


def stopping(caller: str, stop: Stop) -> tuple[frozenset[int], Callable[[list[int]], bool] | None]:
    """The symbols that end a text, and the function that says whether one is over."""
    if callable(stop):
        return frozenset(), stop
    symbols = () if stop is None else stop if isinstance(stop, Collection) else (stop,)
    for symbol in symbols:
        whole(caller, 0, stop=symbol)
    return frozenset(symbols), None
