"""Long sums in float16. There 2048 + 1 is 2048, and 65520 infinity: sums are kept in `sums.wide`, and N ones come to N.

Every op that adds up gets N rows of one number (or a gradient of ones for N rows) and must give what it gives in float64.
Rows have two columns: a single one, or the last axis, is added up pairwise by NumPy, and only goes wrong when it is HUGE.
"""

import dataclasses
from unittest import mock

import numpy as np
import pytest

import minitx as mx
from minitx import backend, sums

from .harness import DEVICES, call, on_host, run

N, HUGE = 2100, 70_000
one, zero = np.ones, np.zeros
RNN = zero((2, 2)), zero((2, 2)), zero(2)                                    # W, U and the biases
GRU = zero((2, 6)), zero((2, 6)), zero(6), zero(6)
LSTM = zero((2, 8)), zero((2, 8)), zero(8)

LONG = {
    "add": call(zero((N, 2)), zero(2)),
    "mul": call(one((N, 2)), one(2)),
    "matmul": call(zero((N, 1, 2)), zero((2, 2))),
    "sum": call(one((N, 2)), axis=0),
    "mean": call(one((HUGE, 2)), axis=0),
    "power": call(2 * one((N, 2)), one(2)),
    "maximum": call(zero((N, 2)), one(2)),
    "minimum": call(one((N, 2)), zero(2)),
    "where": call(zero((N, 2), bool), zero(2), one(2)),
    "max": call(one((N, 2)), axis=0),
    "min": call(one((N, 2)), axis=0),
    "logsumexp": call(zero((N, 2)), axis=0),
    "norm": call(one((N, 2)), axis=0),
    "var": call(one((N, 2)) * np.resize([1, -1], (N, 1)), axis=0),
    "prod": call(np.repeat([[200.0, 200], [1 / 200, 1 / 200]], 3, axis=0), axis=0),
    "cumsum": call(one((N, 2)), axis=0),
    "getitem": call(one((2, 2)), index=zero(N, int)),
    "take": call(one((2, 2)), zero(N, int)),
    "gather": call(one((2, 2)), zero((N, 2), int), axis=0),
    "softmax": call(zero((N, 2)), axis=0),
    "log_softmax": call(zero((N, 2)), axis=0),
    "cross_entropy": call(zero((1, HUGE)), np.array([7])),
    "linear": call(zero((N, 2)), zero((2, 2)), zero(2)),
    "mse": call(one(HUGE), zero(HUGE)),
    "binary_cross_entropy": call(zero(HUGE), one(HUGE, int)),
    "kl_divergence": call(-one((HUGE, 1)), one((HUGE, 1))),
    "layer_norm": call(one((N, 2)) * [1, -1], one(2), zero(2)),
    "rms_norm": call(one((N, 2)), one(2)),
    "embedding": call(zero(N, int), zero((2, 2))),
    "attention": call(zero((1, 1, 1, 1)), zero((1, 1, HUGE, 1)), one((1, 1, HUGE, 1))),
    "additive_attention": call(zero((1, N, 2)), zero((1, 1, 2)), one((1, 1, 2)), zero(2)),
    "rnn_cell": call(zero((N, 2)), zero((N, 2)), *RNN),
    "gru_cell": call(zero((N, 2)), zero((N, 2)), *GRU),
    "lstm_cell": call(zero((N, 2)), zero((N, 2)), zero((N, 2)), *LSTM),
    "rnn": call(zero((1, N, 2)), zero((1, 2)), *RNN),
    "gru": call(zero((1, N, 2)), zero((1, 2)), *GRU),
    "lstm": call(zero((1, N, 2)), zero((1, 2)), zero((1, 2)), *LSTM),
    "unroll(rnn_cell)": call(zero((1, N, 2)), zero((1, 2)), *RNN),
    "unroll(gru_cell)": call(zero((1, N, 2)), zero((1, 2)), *GRU),
    "unroll(lstm_cell)": call(zero((1, N, 2)), zero((1, 2)), zero((1, 2)), *LSTM),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op, sample", LONG.items(), ids=LONG)
def test_long_sums_are_wide(op, sample, device):
    def results(long):
        forward = run(mx.OPS[op], long)
        return on_host([*forward.outputs, *forward.gradients(tuple(0 * dy + 1 for dy in forward.random_dys()))])

    for ours, exact in zip(results(sample.cast("float16").on(device)), results(sample)):
        if exact is not None:
            size = abs(exact).max()
            assert abs(ours - exact).max() < 1e-2 * (size if size > 1e-6 else 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op, others", [("layer_norm", [[300.0, 300], [0, 0]]), ("rms_norm", [[300.0, 300]])])
def test_norms_multiply_widely(op, others, device):
    """300 · 300 is infinity in float16, and stands in x², and in dy gamma."""
    sample = call(np.array([[300.0, -300]]), *map(np.array, others))
    narrow, exact = (run(mx.OPS[op], s) for s in (sample.cast("float16").on(device), sample))
    dy = np.array([[300.0, 300]])
    ours = on_host(narrow.gradients((backend.to_device(dy.astype("float16"), device),)))
    for a, b in zip(ours, exact.gradients((dy,))):
        np.testing.assert_allclose(a, b.astype("float16"), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_cross_entropy_subtracts_widely(device):
    """One loss of 120,000, which float16 does not hold, and three near 0: on average 30,000, which it does."""
    logits = np.array([[60_000, -60_000], *[[0, -20]] * 3], "float16")
    loss, _ = mx.ops.cross_entropy.vjp(*(backend.to_device(a, device) for a in (logits, np.array([1, 0, 0, 0]))))
    assert on_host([loss])[0] == 30_000


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_rows_are_added_up_widely(device):
    x, y = (backend.to_device(np.full((2, 3), number, "float16"), device) for number in (30_000, 2))
    found = sums.row_dot(x, y)
    assert found.dtype == "float32" and on_host([found])[0].tolist() == [[180_000], [180_000]]


@pytest.mark.parametrize("blas", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sums_by_products_and_sums_by_sum_are_equal_and_wide(dtype, blas):
    """NumPy goes one way and CuPy the other; a GPU is not needed to see that they lead to the same place."""
    rng = np.random.default_rng(0)
    x = rng.uniform(2e4, 3e4, (3, 5, 7)).astype(dtype)                       # the sum of three is too large for float16
    weights = rng.uniform(2, 3, 7).astype(sums.wide(x))
    with mock.patch.dict(backend._BY_TYPE, {np.ndarray: dataclasses.replace(backend.device("cpu"), blas=blas)}):
        found = sums.row_sum(x), sums.row_sum(x, weights), sums.column_sum(x)
    exact = x.astype("float64")
    for a, b in zip(found, (exact.sum(-1, keepdims=True), (exact * weights).sum(-1, keepdims=True), exact.sum((0, 1)))):
        assert a.dtype == sums.wide(x) and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-14 if dtype == "float64" else 1e-6)
