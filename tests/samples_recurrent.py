"""Samples of the recurrent ops: cells of one step, and sequences by `unroll` and in one go, of equal and unequal lengths."""

import numpy as np

from .harness import call, samples_of

ACTIVATIONS = ("tanh", "relu", "linear")
CELLS = [(2, 3, 4), (1, 1, 1), (3, 1, 2), (1, 3, 1), (0, 2, 3)]                              # B, D, H
SEQUENCES = [(2, 3, 2, 3), (1, 1, 1, 1), (2, 5, 1, 2), (1, 1, 3, 2), (3, 2, 2, 1),
             (2, 0, 2, 3), (0, 2, 1, 2)]                                                     # B, T, D, H


def draw(rng, x, states, H, gates=1, biases=1):
    """x, the states (B, H), W (D, gates H), U (H, gates H) and the biases, of a size at which nothing saturates."""
    return (rng.standard_normal(x), *(rng.standard_normal((x[0], H)) for _ in range(states)),
            rng.standard_normal((x[-1], gates * H)) / 2, rng.standard_normal((H, gates * H)) / H,
            *(rng.standard_normal(gates * H) / 2 for _ in range(biases)))


@samples_of("rnn_cell")
def rnn_cell(rng):
    for k, (B, D, H) in enumerate(CELLS):
        yield call(*draw(rng, (B, D), 1, H))
        yield call(*draw(rng, (B, D), 1, H), activation=ACTIVATIONS[k % 3])


@samples_of("gru_cell")
def gru_cell(rng):
    for B, D, H in CELLS:
        yield call(*draw(rng, (B, D), 1, H, gates=3, biases=2))


@samples_of("lstm_cell")
def lstm_cell(rng):
    for B, D, H in CELLS:
        yield call(*draw(rng, (B, D), 2, H, gates=4))


def lengths(B, T):
    """In no order: half of T, all of it, nothing."""
    return np.resize([T // 2, T, 0], B)


@samples_of("unroll(rnn_cell)", "rnn")
def rnn(rng):
    for k, (B, T, D, H) in enumerate(SEQUENCES):
        yield call(*draw(rng, (B, T, D), 1, H))
        yield call(*draw(rng, (B, T, D), 1, H), activation=ACTIVATIONS[k % 3])
        yield call(*draw(rng, (B, T, D), 1, H), lengths(B, T))


@samples_of("unroll(gru_cell)", "gru")
def gru(rng):
    for B, T, D, H in SEQUENCES:
        yield call(*draw(rng, (B, T, D), 1, H, gates=3, biases=2))
        yield call(*draw(rng, (B, T, D), 1, H, gates=3, biases=2), lengths(B, T))


@samples_of("unroll(lstm_cell)", "lstm")
def lstm(rng):
    for B, T, D, H in SEQUENCES:
        yield call(*draw(rng, (B, T, D), 2, H, gates=4))
        yield call(*draw(rng, (B, T, D), 2, H, gates=4), lengths(B, T))


def steps(rng, B, T, H, states, gates, biases=0):
    """What the inputs bring to all steps, the states, U and its biases."""
    a, *starts, _, U, bU = draw(rng, (B, T, gates * H), states, H, gates)
    return a, *starts, U, *[bU] * biases


@samples_of("rnn_steps")
def rnn_steps(rng):
    for k, (B, T, _, H) in enumerate(SEQUENCES):
        yield call(*steps(rng, B, T, H, 1, 1), activation=ACTIVATIONS[k % 3])
        yield call(*steps(rng, B, T, H, 1, 1), lengths(B, T))


@samples_of("gru_steps")
def gru_steps(rng):
    for B, T, _, H in SEQUENCES:
        yield call(*steps(rng, B, T, H, 1, 3, biases=1))
        yield call(*steps(rng, B, T, H, 1, 3, biases=1), lengths(B, T))


@samples_of("lstm_steps")
def lstm_steps(rng):
    for B, T, _, H in SEQUENCES:
        yield call(*steps(rng, B, T, H, 2, 4))
        yield call(*steps(rng, B, T, H, 2, 4), lengths(B, T))
    yield call(*steps(rng, 4, 2, 1, 2, 4))                                                   # as many sequences as gates


@samples_of("reverse")
def reverse(rng):
    for k, (B, T, D, _) in enumerate(SEQUENCES):
        yield call(rng.standard_normal((B, T, D)))
        yield call(rng.standard_normal((B, T, D)), lengths(B, T).astype(("int32", "uint64")[k % 2]))
