"""Samples of the ops that NumPy has too (powers, extremes, reductions, indexing), and of the losses beside cross-entropy.

Points without a slope are not among them, since no nudge can tell there: see `test_subgradients.py`.
"""

import numpy as np

from .harness import call, samples_of

BROADCASTING = [((2, 3), (3,)), ((), ()), ((1,), (2, 3)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 4), (3, 1)),
                ((2, 1, 3, 1), (2, 1, 5)), ((2, 3, 2), (2, 3, 2)), ((0, 3), (1, 3)), ((2, 0), (1,))]
REDUCTIONS = [((2, 3), 1), ((2, 3), None), ((), None), ((5,), 0), ((1,), -1), ((2, 3, 4), 1), ((2, 3, 4), (0, 2)),
              ((2, 3, 4), (-1,)), ((1, 3), 0), ((2, 1, 3, 2), (0, 1, -1)), ((2, 3), ()), ((0, 3), 1), ((2, 0, 3), -1)]
OF_NOTHING = [((0, 3), 0), ((2, 0), None), ((2, 0, 3), (0, 1))]


# Powers


def positive(rng, *shape):
    return np.exp(rng.standard_normal(shape) / 2)


@samples_of("power")
def power(rng):
    for x, y in BROADCASTING:
        yield call(positive(rng, *x), rng.standard_normal(y))
    for y in (2, 3, 0.5, -1, -2.0, 1, 0, True):
        yield call(positive(rng, 2, 3), y)
    for x in (2, 0.5, 1):
        yield call(x, rng.standard_normal((3, 1)))
    yield call(np.array([[0.0, -0.5, 2.0], [-3, 1, 0]]), 3)                  # of negative numbers: whole exponents
    yield call(np.array([0.0, -0.5, 2.0]), 0)
    yield call(np.array([-2.0, -0.5, 2, 3]), np.array([[-1], [0], [1], [4]]))
    yield call(np.array([3, 1, 2]), rng.standard_normal((2, 3)))
    yield call(0, np.array([0.5, 1, 3]))
    yield call(np.array([0.0, 1.5]), np.array([2.0, 3.0]))


@samples_of("log", "sqrt")
def of_positive(rng):
    for shape in [(2, 3), (), (1,), (5,), (2, 3, 4), (2, 1, 3, 2), (0,), (2, 0, 3)]:
        yield call(positive(rng, *shape))
    yield call(np.array([0.1, 0.5, 1, 3, 1000]))


# Extremes


@samples_of("maximum", "minimum")
def binary(rng):
    for x, y in BROADCASTING:
        yield call(rng.standard_normal(x), rng.standard_normal(y))
    yield call(rng.standard_normal((2, 3)), 0.1)
    yield call(-1, rng.standard_normal((2, 3)))
    yield call(rng.standard_normal((2, 3)), rng.integers(-1, 2, (4, 1, 3)))
    yield call(np.array([True, False]), rng.standard_normal((3, 1)))


@samples_of("clip")
def clip(rng):
    for shape in [(2, 3), (), (1,), (5,), (2, 3, 4), (2, 1, 3, 2), (0,)]:
        yield call(rng.standard_normal(shape), low=-0.5, high=1)
    yield call(rng.standard_normal((3, 3)), low=0.2)
    yield call(rng.standard_normal((3, 3)), high=-0.2)
    yield call(rng.standard_normal((3, 3)), low=None, high=0)
    yield call(rng.standard_normal(3), low=0.1, high=0.1)
    yield call(np.array([-1000.0, 0, 1000]), low=-1, high=1)


@samples_of("where")
def where(rng):
    def draw(c, x, y):
        return call(rng.random(c) < 0.5, rng.standard_normal(x), rng.standard_normal(y))

    for x, y in BROADCASTING:
        yield draw(np.broadcast_shapes(x, y), x, y)
    for shapes in [((2, 3), (1,), ()), ((3,), (2, 3), (2, 1)), ((), (2, 3), (3,)), ((2, 1, 1), (3, 1), (2,))]:
        yield draw(*shapes)
    condition = np.array([[True], [False]])
    yield call(condition, rng.standard_normal((2, 3)), 0)
    yield call(condition, 1.5, rng.standard_normal((2, 3)))
    yield call(condition, rng.integers(0, 9, 3), rng.standard_normal(3))
    yield call(np.array([True, False]), np.zeros(2), np.array([np.inf, 1]))


@samples_of("max", "min")
def extremes(rng):
    for shape, axis in REDUCTIONS:
        yield call(rng.standard_normal(shape), axis=axis, keepdims=False)
        yield call(rng.standard_normal(shape), axis=axis, keepdims=True)
    yield call(rng.standard_normal((3, 2)))


# Reductions


@samples_of("norm", "prod", "logsumexp")
def reductions(rng):
    yield from extremes(rng)
    for shape, axis in OF_NOTHING:
        yield call(np.zeros(shape), axis=axis)


@samples_of("prod")
def prod(rng):
    yield from reductions(rng)
    yield call(np.array([[2.0, 3, 4], [2, 0, 4], [0, 3, 0], [0, 0, 0]]), axis=1)       # without, with one, with more zeros
    yield call(np.array([[[2.0, 0], [3, -4]]]), axis=(1, 2))


@samples_of("logsumexp")
def logsumexp(rng):
    yield from reductions(rng)
    yield call(np.array([[1000.0, 999, 1001], [-1000, -1001, -1002]]), axis=1)
    yield call(np.array([[0.5, -np.inf, 2.0], [-np.inf] * 3, [-np.inf, -np.inf, 1]]), axis=-1)
    yield call(np.array([[-np.inf, -np.inf]]))
    yield call(rng.standard_normal((2, 3)), axis=-2)


@samples_of("var")
def var(rng):
    yield from extremes(rng)
    yield call(rng.standard_normal((4, 3)), axis=0, ddof=1)
    yield call(rng.standard_normal((2, 1, 3)), axis=(0, -1), ddof=2, keepdims=True)
    yield call(100 + rng.standard_normal(5), ddof=0.5)


@samples_of("cumsum")
def cumsum(rng):
    for shape, axis in [((2, 3), 1), ((2, 3), 0), ((2, 3), None), ((), None), ((5,), -1), ((1,), 0), ((2, 3, 4), 1),
                        ((2, 1, 3, 2), -2), ((2, 1, 3, 2), None), ((0, 3), 1), ((2, 0), 0), ((2, 0), None)]:
        yield call(rng.standard_normal(shape), axis=axis)
    yield call(rng.standard_normal((3, 2)))


# Places


@samples_of("pad")
def pad(rng):
    for shape, widths in [((2, 3), ((1, 2), (0, 3))), ((3,), ((2, 0),)), ((2, 3, 1), 1), ((2, 3), (2, 1)), ((1,), 0),
                          ((), ()), ((), 2), ((2, 1, 3, 2), ((0, 0), (1, 0), (0, 2), (1, 1))), ((0, 3), ((1, 1), (0, 0))),
                          ((2, 0), [[0, 0], [0, 0]])]:
        yield call(rng.standard_normal(shape), widths=widths)
    yield call(rng.standard_normal((2, 1)), widths=1, value=-2.5)
    yield call(rng.standard_normal(2), widths=1, value=3)


@samples_of("take")
def take(rng):
    for shape, axis, ids in [((4, 3), 0, [[1, 1, 3], [0, 1, 3]]), ((3,), 0, [2, 0]), ((3,), -1, 1), ((2, 3), 1, [2, 2, 0, 2]),
                             ((2, 3, 4), 1, [[[1], [0]]]), ((2, 3, 2, 3), -2, [[0, 1], [1, 1]]), ((1, 1), 1, [0]),
                             ((3, 2), 0, np.zeros(0, int)), ((0, 3), 1, [1, 1]), ((2, 0), 0, [[1, 0]])]:
        yield call(rng.standard_normal(shape), np.array(ids), axis=axis)
    yield call(rng.standard_normal((3, 2)), np.array([2, 1, 2], "int32"))


@samples_of("gather")
def gather(rng):
    for x, axis, ids in [((3, 4), 1, (3, 2)), ((3, 4), 0, (5, 4)), ((5,), 0, (7,)), ((1, 1), -1, (1, 3)),
                         ((2, 3, 4), 1, (2, 1, 4)), ((2, 3, 2, 3), -2, (2, 3, 5, 3)), ((3, 2), 1, (3, 0)), ((0, 3), 1, (0, 2))]:
        yield call(rng.standard_normal(x), rng.integers(0, x[axis], ids), axis=axis)
    yield call(rng.standard_normal((2, 3)), np.array([[1, 1], [0, 2]], "uint8"))
    yield call(rng.standard_normal((2, 1, 3)), np.array([[[1, 1]], [[0, 2]]]))


# Losses


@samples_of("mse")
def mse(rng):
    for shape in [(2, 3), (), (1,), (5,), (2, 3, 4), (2, 1, 3, 2), (0, 3)]:
        for reduction in ("mean", "sum", "none"):
            yield call(rng.standard_normal(shape), rng.standard_normal(shape), reduction=reduction)
    yield call(rng.standard_normal((2, 3)), rng.standard_normal((2, 3)))


@samples_of("binary_cross_entropy")
def binary_cross_entropy(rng):
    for shape in [(2, 3), (), (1,), (5,), (2, 3, 4), (2, 1, 3, 2), (0, 3)]:
        for reduction in ("mean", "sum", "none"):
            yield call(2 * rng.standard_normal(shape), 0.1 + 0.8 * rng.random(shape), reduction=reduction)
    yield call(rng.standard_normal((2, 3)), rng.random((2, 3)) < 0.5)
    yield call(np.array([-800.0, -30, -1, 0, 2, 30, 800]), np.array([0, 1, 1, 0, 0, 1, 1]), reduction="none")


@samples_of("kl_divergence")
def kl_divergence(rng):
    for shape in [(2, 3), (1,), (5,), (2, 3, 4), (2, 1, 3, 2), (0, 3)]:
        for reduction in ("mean", "sum", "none"):
            yield call(rng.standard_normal(shape) - 2, 0.1 + rng.random(shape), reduction=reduction)
    yield call(np.log([[0.2, 0.8], [0.5, 0.5]]), np.array([[0.2, 0.8], [0.9, 0.1]]))       # of one distribution from itself: 0
