"""Samples: for every op the inputs on which the contract is checked.

A new op needs one generator here (`@samples_of`) and one oracle in `oracles.py`; `test_contract.py` does the rest. The
first sample is the one whose saved bytes stand in `saved_bytes.json`. Float arrays are float64; no kink is near.

Read next: `oracles.py`. What NumPy has too, layers and recurrences have rooms of their own, which are imported here.
"""

import numpy as np

from . import samples_layers, samples_numpy, samples_recurrent  # noqa: F401
from .harness import call, samples_of

# Arithmetic and reductions


@samples_of("add", "sub", "mul", "div")
def binary(rng):
    """Every way to broadcast; then numbers, integers and booleans, which get no gradient."""
    def draw(*shape):
        x = rng.standard_normal(shape)
        return x + np.copysign(0.5, x)                                       # away from zero: y is a divisor

    for x, y in [((2, 3), (3,)), ((), ()), ((1,), (2, 3)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 4), (3, 1)),
                 ((5,), (2, 3, 5)), ((2, 1, 3, 1), (2, 1, 5)), ((2, 3, 2), (2, 3, 2)), ((1, 1), (1,)),
                 ((0, 3), (1, 3)), ((2, 0), (1,)), ((0,), (0,))]:
        yield call(draw(*x), draw(*y))
    yield call(draw(2, 3), 2.5)
    yield call(-3, draw(2, 3))
    yield call(draw(2, 3), rng.integers(1, 5, (4, 1, 3)))
    yield call(rng.integers(1, 5, 3, dtype="int32"), draw(2, 1))
    yield call(draw(2, 3), np.array([True, True, True]))


@samples_of("neg", "exp", "abs", "relu")
def unary(rng):
    for shape in [(2, 3), (), (1,), (5,), (2, 3, 4), (2, 1, 3, 2), (0,), (2, 0, 3)]:
        yield call(rng.standard_normal(shape))
    yield call(np.array([-800.0, -30, -3, -1, 0.5, 2]))


@samples_of("sigmoid", "tanh", "softplus", "silu")
def saturating(rng):
    yield from unary(rng)
    yield call(np.array([[-800.0, -30, -1, 0], [0.5, 3, 40, 800]]))


@samples_of("gelu")
def gelu(rng):
    yield from unary(rng)
    yield call(np.array([-1000.0, -5, -3, -1, 0, 0.5, 3, 9, 1000]))
    for shape in [(3, 2), (), (0,)]:
        yield call(rng.standard_normal(shape), approximate="none")
    yield call(np.array([-1000.0, -5, -3, -1, 0, 0.5, 3, 9, 1000]), approximate="none")


@samples_of("matmul")
def matmul(rng):
    for x, y in [((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((1, 1), (1, 1)), ((2, 5, 3), (3, 2)),
                 ((4, 3), (2, 3, 1)), ((1, 2, 3), (5, 3, 4)), ((2, 1, 2, 3), (3, 3, 2)), ((3,), (2, 3, 4)),
                 ((2, 2, 3), (3,)), ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0, 2, 3), (3, 2))]:
        yield call(rng.standard_normal(x), rng.standard_normal(y))


@samples_of("sum", "mean")
def reductions(rng):
    for shape, axis in [((2, 3), 1), ((2, 3), None), ((), None), ((5,), 0), ((1,), -1), ((2, 3, 4), 1),
                        ((2, 3, 4), (0, 2)), ((2, 3, 4), (-1,)), ((1, 3), 0), ((2, 1, 3, 2), (0, 1, -1)), ((0, 3), 1),
                        ((2, 0, 3), -1)]:
        yield call(rng.standard_normal(shape), axis=axis, keepdims=False)
        yield call(rng.standard_normal(shape), axis=axis, keepdims=True)
    yield call(rng.standard_normal((3, 2)))


@samples_of("sum")
def sums(rng):
    yield from reductions(rng)
    yield call(np.zeros((0, 3)), axis=0)                                     # of nothing, which has no mean
    yield call(np.zeros((2, 0)))


# Moving numbers


@samples_of("reshape")
def reshape(rng):
    for before, after in [((2, 6), (3, 4)), ((2, 3), (-1,)), ((2, 3, 4), (4, -1, 2)), ((6,), 6), ((), (1, 1)),
                          ((1,), ()), ((2, 1, 3, 2), (3, 4)), ((0, 3), (3, 0)), ((5,), (5, 1, 1, 1))]:
        yield call(rng.standard_normal(before), shape=after)


@samples_of("transpose")
def transpose(rng):
    for shape, axes in [((2, 3, 4), (1, 2, 0)), ((2, 3), None), ((2, 3, 4), None), ((3,), (0,)), ((), None),
                        ((2, 3, 4, 5), (0, 2, 1, 3)), ((2, 3, 4), (0, -1, 1)), ((2, 0, 1), (2, 0, 1))]:
        yield call(rng.standard_normal(shape), axes=axes)


@samples_of("getitem")
def getitem(rng):
    rows, mask, every = np.array([[0, 2, 2], [1, -1, 0]]), np.array([True, False, True]), slice(None)
    for shape, index in [
        ((4, 3), slice(1, 3)), ((3,), 1), ((3, 2), -1), ((3, 2), (1, 0)), ((3, 2), np.int64(2)), ((1, 1), (0, 0)),
        ((5, 4), (slice(None, None, -2), slice(1, None, 2))), ((4, 3), slice(2, 2)), ((0, 3), (every, 1)),
        ((3, 4, 2), (Ellipsis, 0)), ((3, 4), (None, every, None, 1)), ((), None),
        ((3, 2), rows), ((3, 2), [2, 0, 2]), ((2, 3, 4), (every, rows)), ((3,), np.array([1, 1], "int32")),
        ((3, 4), (rows, np.array([[3], [0]]))), ((2, 3, 3, 2), (0, rows, rows)), ((3, 2), np.zeros(0, int)),
        ((3, 2), []), ((3, 2), [True, False, True]), ((3, 2), range(0, 3, 2)), ((3, 2), ([0, 2], 1)),
        ((3, 2), ((0, 2), (1, 1))),
        ((3, 2), mask), ((2, 3), (1, mask)), ((2, 3), np.array([mask, ~mask])),
    ]:
        yield call(rng.standard_normal(shape), index=index)


@samples_of("concatenate")
def concatenate(rng):
    for shapes, axis in [([(2, 3), (2, 1), (2, 4)], -1), ([(3,), (2,)], 0), ([(1, 2), (3, 2)], 0), ([(2, 3)], 1),
                         ([(2, 1, 3), (2, 2, 3)], 1), ([(2, 0), (2, 3)], -1), ([(0, 2), (0, 2)], 0),
                         ([(2, 1, 3, 2), (2, 1, 1, 2)], -2)]:
        yield call(*(rng.standard_normal(shape) for shape in shapes), axis=axis)
    yield call(rng.standard_normal((2, 1, 2)), rng.standard_normal((2, 1, 1)))


@samples_of("stack")
def stack(rng):
    for n, shape, axis in [(3, (2, 4), 1), (2, (), 0), (1, (3,), 0), (2, (3,), -1), (3, (2, 1, 2), -2), (2, (0, 3), 0),
                           (2, (2, 3), 2), (2, (1, 2, 1, 3), -1)]:
        yield call(*(rng.standard_normal(shape) for _ in range(n)), axis=axis)
    yield call(rng.standard_normal((2, 3)), rng.standard_normal((2, 3)))


@samples_of("unstack")
def unstack(rng):
    for shape, axis in [((2, 3), 1), ((3,), 0), ((1, 2), 0), ((2, 3, 2), -1), ((2, 3, 2), -2), ((2, 1, 2, 2), 2),
                        ((2, 0), 0)]:
        yield call(rng.standard_normal(shape), axis=axis)
    yield call(rng.standard_normal((2, 5)))


@samples_of("split")
def split(rng):
    for shape, sections, axis in [((2, 6), 3, -1), ((5,), (1, 4), 0), ((6, 1), (1, 2, 3), 0), ((2, 4, 3), 2, 1),
                                  ((2, 3), 1, -1), ((3, 2), [0, 2], 1), ((0, 4), 2, 1), ((2, 1, 4, 2), (3, 1), -2)]:
        yield call(rng.standard_normal(shape), sections=sections, axis=axis)
    yield call(rng.standard_normal((2, 1, 3)), sections=3)


@samples_of("split_heads")
def split_heads(rng):
    for B, T, K, heads in [(2, 3, 2, (2, 1, 1)), (1, 2, 3, (1,)), (2, 1, 1, (1, 2)), (1, 4, 2, [2, 2]), (0, 2, 1, (1, 1)),
                           (2, 0, 2, (1, 1)), (3, 2, 1, (3,))]:
        yield call(rng.standard_normal((B, T, sum(heads) * K)), heads=heads)


@samples_of("merge_heads")
def merge_heads(rng):
    for shape in [(2, 3, 4, 2), (1, 1, 2, 3), (2, 2, 1, 1), (1, 3, 2, 1), (2, 1, 3, 2), (0, 2, 3, 1), (2, 2, 0, 2)]:
        yield call(rng.standard_normal(shape))
    yield call(rng.standard_normal((2, 4, 3, 2)).transpose(0, 2, 1, 3))      # in memory as `side_by_side` wants it
