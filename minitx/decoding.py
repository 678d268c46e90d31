"""Decoding: from a model that scores the next symbol to whole sequences, the most likely ones if we can find them.

    greedy        the likeliest symbol at every step: one path, never reconsidered
    beam_search   the `width` likeliest beginnings side by side

Both know a model only as a function `step(ids, state) -> (scores, state)`. It reads one more symbol in each of R rows, ids
int64 (R) on the host, and returns what it thinks of the next one, scores (R, V), logits or log-probabilities. The state is
what it remembers: a Tensor or an array with the rows as first axis, tuples, lists and dicts of them, or whatever has a method
`select(rows)`. That may be the h of a recurrence as well as the cache of a Transformer. Rows that have ended are asked on, and
nobody looks at them.

Read next: `examples/reverse_words.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .backend import device_of, expecting_overflow, is_array, to_device, to_host
from .data.text import as_ids
from .ops import log_softmax, take
from .options import number, whole
from .tensor import Tensor, no_grad

Step = Callable[[np.ndarray, Any], tuple[Any, Any]]


class Hypothesis(NamedTuple):
    """A sequence that the model may have meant."""

    ids: tuple[int, ...]        # without the stop symbol
    log_p: float                # nats: the sum over all symbols that were predicted, the stop symbol included
    finished: bool              # whether the stop symbol came; if not, the sequence was cut

    @property
    def length(self) -> int:
        """How many symbols were predicted: the ids, and the stop symbol where it came."""
        return len(self.ids) + self.finished

    def score(self, alpha: float) -> float:
        """log p / length_penalty, by which sequences of unequal length are compared."""
        return self.log_p / length_penalty(self.length, alpha)


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha. With alpha = 0 it is 1, and short sequences win, since every symbol costs probability.

    Source  Wu et al. 2016, arXiv 1609.08144

    >>> [round(length_penalty(length, 0.6), 3) for length in (1, 7, 25)]
    [1.0, 1.516, 2.627]
    """
    return ((5 + length) / 6) ** alpha


@no_grad()
def greedy(step: Step, state: Any, start: Any, *, stop: int, steps: int) -> list[Hypothesis]:
    """One sequence for each of B rows: the likeliest symbol at every step, of equally likely ones that with the lowest id.

    Args:
        state: of all rows, before the first symbol.
        start: the symbol that each row reads first, ids (B).
        stop: the symbol that ends a sequence.
        steps: how many symbols are predicted at most, the stop symbol included; a row that has not ended by then is cut.
    """
    last = checked("greedy", step, start, stop=stop, steps=steps)
    if hasattr(state, "select"):        # a cache is filled by its steps: that of the caller stays as it is
        state = state.select(np.arange(len(last)))
    ids: list[list[int]] = [[] for _ in last]
    log_p, live = np.zeros(len(last)), np.ones(len(last), bool)
    for _ in range(steps):
        table, state = ask(step, last, state, stop)
        last = table.argmax(-1)
        for b in live.nonzero()[0]:
            check_finite("greedy", table[b])
            log_p[b] += table[b, last[b]]
            ids[b].append(int(last[b]))
        live &= last != stop
        if not live.any():
            break
    return [Hypothesis(tuple(row[:len(row) - end]), float(log), end) for row, log, end in zip(ids, log_p, (~live).tolist())]


@no_grad()
def beam_search(step: Step, state: Any, start: Any, *, stop: int, steps: int, width: int = 4,
                alpha: float = 0.6) -> list[list[Hypothesis]]:
    """For each of B rows the best sequences that are found by following `width` beginnings: at most `width`, the best first.

    At every step each beginning is extended by each symbol, and the `width` likeliest extensions are kept. Those that end with
    `stop` are finished and set aside; the others live on. Among the finished decides

        score = log p / ((5 + length) / 6)^alpha         length: the symbols predicted, the stop symbol included

    and what had to be cut after `steps` symbols stands behind them. The search ends as soon as no living beginning can beat the
    best finished sequence, not even if all its further symbols were certain; so the first of the result is what the full
    search gives, and the others are what was found by then. Of equals, the extension of the likelier beginning is first, then
    the lower id.

    Args: as for `greedy`, and
        width: 1 follows the greedy path; with as many as there are sequences, nothing is missed.
        alpha: from 0 to 10; the larger, the longer the sequences that win.

    `step` is asked for B · width rows: row r is a beginning of `start[r // width]`.

    >>> scores = np.array([[-9, 0.4, 0, -9], [0, 0, 0, 0.2], [-9, -9, -9, 9], [0, 0, 0, 0]])     # after 1 all is uncertain
    >>> options = {"step": lambda ids, state: (scores[ids], state), "state": None, "start": [0], "stop": 3, "steps": 5}
    >>> [beam_search(**options, width=width)[0][0].ids for width in (1, 4)]
    [(1,), (2,)]

    Source  Graves 2012, arXiv 1211.3711; Sutskever, Vinyals & Le 2014, arXiv 1409.3215; the score: Wu et al. 2016,
            arXiv 1609.08144
    """
    first = checked("beam_search", step, start, stop=stop, steps=steps)
    whole("beam_search", width=width)
    number("beam_search", 0, 10, alpha=alpha)
    beams = [Beam(stop, steps, width, alpha) for _ in first]
    rows, count = np.repeat(np.arange(len(first)), width), len(first)       # whose state each row goes on with, of how many
    last = first[rows]
    for _ in range(steps):
        table, state = ask(step, last, select(state, rows, count), stop)
        count = len(rows)
        for b, beam in enumerate(beams):
            mine = slice(b * width, (b + 1) * width)
            parents, last[mine] = beam.extend(table[mine])
            rows[mine] = b * width + parents
        if not any(beam.live for beam in beams):
            break
    return [beam.best() for beam in beams]


class Beam:
    """The search for one row: the `live` beginnings, likeliest first, and the sequences `found`."""

    def __init__(self, stop: int, steps: int, width: int, alpha: float) -> None:
        self.stop, self.steps, self.width, self.alpha = stop, steps, width, alpha
        self.live, self.found = [Hypothesis((), 0.0, False)], list[Hypothesis]()

    def extend(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Extend all live beginnings, given log-probabilities (width, V). Whose extensions live on, and by which symbols."""
        parents, last = np.zeros(self.width, int), np.full(self.width, self.stop)      # of rows without a beginning: anything
        if not self.live:
            return parents, last
        V = table.shape[1]
        for row in table[:len(self.live)]:
            check_finite("beam_search", row)
        log_p = table[:len(self.live)] + np.array([[h.log_p] for h in self.live])
        before, self.live = self.live, []
        for place in largest(log_p.ravel(), self.width):
            parent, symbol = divmod(int(place), V)
            ids, log = before[parent].ids, float(log_p[parent, symbol])
            if symbol == self.stop:
                self.found.append(Hypothesis(ids, log, True))
            else:
                parents[len(self.live)], last[len(self.live)] = parent, symbol
                self.live.append(Hypothesis((*ids, symbol), log, False))
        if self.found and self.live and self.bound() <= max(h.score(self.alpha) for h in self.found):
            self.live = []
        return parents, last

    def bound(self) -> float:
        """What no extension of a live beginning can exceed: log p only falls, and the last step has the largest penalty."""
        return self.live[0].log_p / length_penalty(self.steps, self.alpha)

    def best(self) -> list[Hypothesis]:
        """What was found, the best first; what lives still is cut, and comes last."""
        return sorted([*self.found, *self.live], key=lambda h: (not h.finished, -h.score(self.alpha)))[:self.width]


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """The places of the k largest numbers in x (n), the largest first, of equals the first first; none of -inf.

    >>> largest(np.array([1.0, 3.0, -np.inf, 3.0]), 2).tolist()
    [1, 3]
    """
    limit = np.partition(x, -k)[-k] if k < len(x) else -np.inf              # cheaper than to sort all
    places = np.flatnonzero((x >= limit) & (x > -np.inf))
    return places[np.argsort(-x[places], kind="stable")[:k]]


def select(state: Any, rows: np.ndarray, count: int | None = None) -> Any:
    """The state of these rows (R'), in this order: one may come twice, or not at all. `count` is how many rows it must have."""
    if hasattr(state, "select"):
        return state.select(rows)
    if isinstance(state, dict):
        return {name: select(part, rows, count) for name, part in state.items()}
    if isinstance(state, tuple | list):
        parts = [select(part, rows, count) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)      # a NamedTuple, or not
    if count is not None and getattr(state, "shape", (count,))[:1] != (count,):
        raise ValueError(f"select: a state has shape {state.shape}; expected {count} rows as first axis; turn it, so that "
                         f"state[r] is that of row r")
    if isinstance(state, Tensor):
        return take(state, to_device(rows, state.device))
    if is_array(state):
        return state[to_device(rows, device_of(state).name)]
    if state is None:
        return None
    raise TypeError(f"select: a state holds a {type(state).__name__}; expected Tensors or arrays with the rows as first axis, "
                    f"or tuples, lists and dicts of them")


def ask(step: Step, last: np.ndarray, state: Any, stop: int) -> tuple[np.ndarray, Any]:
    """One step: log-probabilities (R, V) in float64 on the host, and the state after it."""
    with expecting_overflow():                                              # what is not finite is found where it matters
        found: Any = step(last.copy(), state)
        if not isinstance(found, tuple | list) or len(found) != 2:
            given = f"{len(found)} values" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
            raise TypeError(f"step: it returned {given}; expected a pair, (scores, state)")
        scores, state = found
        scores = scores.array if isinstance(scores, Tensor) else scores
        if not is_array(scores) or scores.ndim != 2 or len(scores) != len(last) or scores.shape[1] <= stop:
            given = f"of shape {scores.shape}" if is_array(scores) else f"a {type(scores).__name__}"
            raise ValueError(f"step: its scores for {len(last)} rows are {given}; expected a Tensor or an array "
                             f"({len(last)}, V), with V above the stop symbol {stop}")
        return log_softmax.vjp(to_host(scores).astype("float64"))[0], state


def checked(caller: str, step: Step, start: Any, *, stop: int, steps: int) -> np.ndarray:
    """The ids to start from, once all options make sense."""
    if not callable(step):
        raise TypeError(f"{caller}: step is a {type(step).__name__}; expected a function (ids, state) -> (scores, state)")
    whole(caller, 0, stop=stop)
    whole(caller, steps=steps)
    return as_ids(caller, start)


def check_finite(caller: str, row: np.ndarray) -> None:
    if not np.isfinite(row.max()):
        raise FloatingPointError(f"{caller}: the largest log-probability of a row is {row.max()}, so no symbol can be chosen; "
                                 f"the model's parameters have blown up: train it anew, with a lower learning rate")
