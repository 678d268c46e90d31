"""Cases from the field, for ops: places where plausible code of other libraries went wrong. The number is the case's.

Softmax and cross-entropy have `test_losses.py`, the engine has `test_engine.py`; `grep -r test_c tests` lists them all.
"""

import inspect

import numpy as np
import pytest

import minitx as mx
from minitx import backend, ops, panels
from minitx.ops import flash

from .common import every_device, leaf, refused
from .harness import on_host

rng = np.random.default_rng(0)
every_float = pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])


def host(x):
    return on_host([x])[0]


# Large means, constant rows


@every_device
@pytest.mark.parametrize("dtype, mean", [("float32", 20_000), ("float64", 1e8)])
def test_c08_a_large_mean_does_not_swallow_the_spread(dtype, mean, device):
    spread, dy = 0.25 * np.arange(8), rng.standard_normal(8)
    far, near = leaf(mean + spread, dtype, device), leaf(spread - spread.mean(), dtype, device)
    one, zero = mx.tensor(np.ones(8, dtype), device=device), mx.tensor(np.zeros(8, dtype), device=device)
    for x in (far, near):
        y = ops.layer_norm(x, one, zero)
        assert y.numpy()[[0, -1]] == pytest.approx([-1.52750196, 1.52750196], rel=1e-5)
        y.backward(list(dy))
        assert x.detach().var().item() == 0.328125
    np.testing.assert_allclose(host(far.grad), host(near.grad), rtol=1e-4, atol=1e-6)
    assert mx.tensor(1e8 + np.arange(4.0), device=device).var().item() == 1.25


@every_device
@every_float
@pytest.mark.parametrize("eps", [1e-5, 1e-12])
@pytest.mark.parametrize("number", [0, 3.7])
def test_c10_a_constant_row_gives_the_shift_and_a_finite_gradient(number, eps, dtype, device):
    x, gamma, beta = (leaf(a, dtype, device) for a in (np.full(8, number), rng.standard_normal(8), rng.standard_normal(8)))
    y = ops.layer_norm(x, gamma, beta, eps=eps)
    assert (y.array == beta.array).all()
    y.backward(list(0.01 * rng.standard_normal(8)))                          # small: 1/√eps is a million
    dx = host(x.grad).astype("float64")
    assert abs(dx).max() > 1 and abs(dx.sum()) < 1e-2 * abs(dx).max()
    if number == 0:
        z = ops.rms_norm(x, gamma, eps=eps)
        assert not z.array.any() and np.isfinite(host(mx.gradients(z, list(0.01 * rng.standard_normal(8)))[x])).all()


# One name, one formula

GELU = {                        # x: exact, by tanh, and the slopes of both
    -5: (-1.433257859e-6, -2.291796197e-7, -7.146946002e-6, -1.546361988e-6),
    -3: (-0.004049694095, -0.003637392082, -0.0119456472, -0.01158416663),
    -1: (-0.1586552539, -0.1588080094, -0.08331547059, -0.08296408385),
    0.5: (0.3457312306, 0.3457140098, 0.8674951247, 0.8673699035),
    3: (2.995950306, 2.996362608, 1.011945647, 1.011584167),
    1000: (1000, 1000, 1, 1),
    -1000: (0, 0, 0, 0),
}


@every_device
@pytest.mark.parametrize("form, which", [("none", 0), ("tanh", 1)])
def test_c12_gelu_has_two_formulas(form, which, device):
    table = np.array(list(GELU.values()))
    x = leaf(list(GELU), device=device)
    y = ops.gelu(x, approximate=form)
    y.sum().backward()
    np.testing.assert_allclose(y.numpy(), table[:, which], rtol=1e-9)
    np.testing.assert_allclose(host(x.grad), table[:, which + 2], rtol=1e-8)
    if form == "none":
        assert ops.gelu(leaf(-5, "float32", device), approximate="none").item() == pytest.approx(GELU[-5][0], rel=1e-6)


@every_device
def test_c13_the_gradients_at_a_tie_sum_to_one_and_relu_is_flat_at_0(device):
    x, y = leaf([1, 3, 3], device=device), leaf([1, 3, 3], device=device)
    assert host(mx.gradients(x.max())[x]).sum() == host(mx.gradients(x.min())[x]).sum() == 1
    for op in (ops.maximum, ops.minimum):
        grads = mx.gradients(op(x, y).sum())
        assert host(grads[x] + grads[y]).tolist() == [1, 1, 1]
    z = leaf([-1, 0, -0.0, 1], device=device)
    assert host(mx.gradients(z.relu().sum())[z]).tolist() == [0, 0, 0, 1]


# The branch not taken


@every_device
@pytest.mark.parametrize("f, slope", [(ops.sqrt, 1 / 4), (ops.log, 1 / 4), (lambda x: 1 / x, -1 / 16),
                                      (lambda x: x ** -0.5, -1 / 16)], ids=["sqrt", "log", "1/x", "power"])
def test_c15_a_branch_that_is_not_taken_is_safe_when_its_input_is_chosen_too(f, slope, device):
    x = leaf([0, 4], device=device)
    safe = ops.where(x > 0, f(ops.where(x > 0, x, 1)), 0)
    assert host(mx.gradients(safe.sum())[x]).tolist() == [0, slope]
    assert safe.numpy()[0] == 0
    with np.errstate(all="ignore"):                                          # a mask on the result alone: 0 · ∞
        assert np.isnan(host(mx.gradients(ops.where(x > 0, f(x), 0).sum())[x])).tolist() == [True, False]
    assert "where(x > 0, sqrt(where(x > 0, x, 1)), 0)" in inspect.getdoc(ops.where)


# Masks


def weights_of(scores, **options):
    """What attention makes of these scores (Tq, Tk): its keys and values are the rows of an identity."""
    device, one_per_key = options.pop("device"), np.eye(scores.shape[1])
    q, k, v = (leaf(a[None, None], device=device) for a in (scores, one_per_key, one_per_key))
    y = ops.attention(q, k, v, scale=1, **{n: mx.tensor(o, device=device) if n == "mask" else o for n, o in options.items()})
    y.sum().backward()
    assert all(np.isfinite(host(t.grad)).all() for t in (q, k, v))
    return y.numpy()[0, 0]


@every_device
@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, 3), (1, 1, 1, 3)])
def test_c21_true_means_may_be_attended(shape, device):
    allowed, right = np.array([True, False, True]).reshape(shape), [0.1192029220, 0, 0.8807970780]
    scores = np.array([[1.0, 2, 3]])
    np.testing.assert_allclose(weights_of(scores, mask=allowed, device=device), [right], rtol=1e-9)
    x = mx.tensor(scores, device=device)
    for wrong in (allowed.astype(int), np.where(allowed, 0.0, -np.inf)):     # 1 and 0, or the additive form
        refused(TypeError, lambda mask=wrong: weights_of(scores, mask=mask, device=device), "attention: mask must be booleans")
    additive = ops.softmax(x + mx.tensor([0, -np.inf, 0], dtype="float64", device=device))
    chosen = ops.softmax(ops.where(mx.tensor([True, False, True], device=device), x, -np.inf))
    for y in (additive, chosen):
        np.testing.assert_allclose(y.numpy(), [right], rtol=1e-9)


@every_device
@pytest.mark.parametrize("shape", [(2, 3), (4, 1, 1, 3), (4, 2, 2, 3), (1, 2, 1, 3), (1, 1)])
def test_c21_a_mask_broadcasts_over_batch_and_heads(shape, device):
    q, k, v = (rng.standard_normal((4, 2, T, 3)) for T in (2, 3, 3))
    mask = rng.random(shape) < 0.6
    y = ops.attention(*(mx.tensor(a, device=device) for a in (q, k, v, mask))).numpy()
    whole = mx.tensor(np.broadcast_to(mask, (4, 2, 2, 3)), device=device)
    assert np.array_equal(y, ops.attention(*(mx.tensor(a, device=device) for a in (q, k, v)), whole).numpy())


@every_device
@pytest.mark.parametrize("seen", [
    [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], [[0, 0], [0, 0], [1, 0], [1, 1]], [[1] * 8], [[1, 0], [1, 1]],
], ids=lambda seen: f"{len(seen)} queries, {len(seen[0])} keys")
def test_c22_the_last_query_stands_beside_the_last_key(seen, device):
    seen = np.array(seen)
    weights = weights_of(np.zeros(seen.shape), causal=True, device=device)
    np.testing.assert_allclose(weights, seen / np.maximum(seen.sum(1, keepdims=True), 1), rtol=1e-12)


# The same place more than once


@every_device
@every_float
@pytest.mark.parametrize("integers", ["int32", "int64"])
@pytest.mark.parametrize("pick", [
    ops.embedding,
    lambda ids, table: ops.take(table, ids),
    lambda ids, table: table[ids],
    lambda ids, table: ops.gather(table, ops.stack(ids, ids, axis=-1).reshape(6, 2), axis=0).reshape(2, 3, 2),
], ids=["embedding", "take", "getitem", "gather"])
def test_c17_a_row_that_is_used_twice_gets_both_gradients(pick, integers, dtype, device):
    table, ids = leaf(np.zeros((4, 2)), dtype, device), mx.tensor([[1, 1, 3], [0, 1, 3]], dtype=integers, device=device)
    grad = mx.gradients(pick(ids, table), np.arange(1, 13).reshape(2, 3, 2).tolist())[table]
    assert grad.dtype == dtype and host(grad).tolist() == [[7, 8], [13, 16], [0, 0], [16, 18]]


@every_device
@every_float
@pytest.mark.parametrize("V", [7, 700])
def test_a_gradient_that_is_no_number_stays_in_the_row_of_its_id(V, dtype, device):
    """A product with one-hot rows would spread it: 0 times infinity is NaN."""
    ids = np.random.default_rng(0).permutation(np.repeat(np.arange(7), [1, 1, 0, 2, 3, 9, 4]))
    dy = np.arange(2.0 * len(ids)).reshape(-1, 2)
    dy[ids == 0], dy[ids == 1] = np.inf, np.nan
    expected = np.zeros((V, 2))
    np.add.at(expected, ids, dy)
    _, backward = ops.embedding.vjp(mx.tensor(ids, device=device).array, leaf(np.zeros((V, 2)), dtype, device).array)
    assert np.array_equal(host(backward(leaf(dy, dtype, device).array)[1]), expected, equal_nan=True)


# Panels


@every_device
@pytest.mark.parametrize("rows, K, N, P", [
    (0, 3, 0, 1), (2, 3, 130, 1), (100, 100, 100, 1), (16, 256, 1024, 16), (16, 1024, 256, 8), (32, 1024, 256, 16),
    (125, 125, 128, 2), (126, 125, 128, 4),                                  # a million each is just small enough
    (100, 100, 4032, 63), (100, 100, 992, 31), (20, 2000, 512, 32),          # in widths of 64, 32 and 16
    (101, 100, 100, 1), (1000, 100, 15, 1),                                  # no width of these fits
])
def test_a_product_that_comes_again_is_cut_to_where_its_lengths_multiply_to_a_million(rows, K, N, P, device):
    x, W = (leaf(rng.standard_normal(shape), device=device).array for shape in ((rows, K), (K, N)))
    cut, times_W = panels.panels(W, rows), panels.multiplier(W, rows)
    assert cut.shape == (P, K, N // P) and (host(cut).swapaxes(0, 1).reshape(K, N) == host(W)).all()
    np.testing.assert_allclose(host(times_W(x)), host(x) @ host(W), rtol=1e-9, atol=1e-9)
    assert backend.owner(times_W(x)) is backend.owner(times_W(2 * x)), "no new memory each time"


# Un-broadcasting

SHAPES = [((1,), (2, 3)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 4), (3, 1)), ((5,), (2, 3, 5)), ((0, 3), (1, 3)),
          ((1, 1), (1,))]


@every_device
@every_float
@pytest.mark.parametrize("x, y", SHAPES)
@pytest.mark.parametrize("op", [ops.add, ops.sub, ops.mul, ops.div, ops.power, ops.maximum, ops.minimum, ops.where],
                         ids=lambda op: op.name)
def test_c53_the_gradient_of_what_was_repeated_is_the_sum_over_its_places(op, x, y, dtype, device):
    a, b = rng.integers(1, 4, x), rng.integers(1, 4, y)
    shape = np.broadcast_shapes(x, y)
    condition = [mx.tensor(rng.random(shape) < 0.5, device=device)] * (op is ops.where)
    short = [leaf(v, dtype, device) for v in (a, b)]
    long = [leaf(np.broadcast_to(v, shape), dtype, device) for v in (a, b)]
    ours, full = mx.gradients(op(*condition, *short).sum()), mx.gradients(op(*condition, *long).sum())
    for t, whole in zip(short, long):
        places = np.broadcast_to(np.arange(t.size).reshape(t.shape), shape)
        sums = np.bincount(places.ravel(), host(full[whole]).ravel(), t.size).reshape(t.shape)
        assert (ours[t].shape, ours[t].dtype) == (t.shape, dtype)
        np.testing.assert_allclose(host(ours[t]), sums, rtol=4e-3 if dtype == "float16" else 1e-6)


# float32 stays float32

BESIDE_FLOATS = {
    "add": ops.add, "sub": ops.sub, "mul": ops.mul, "div": ops.div, "power": ops.power, "base": lambda x, i: ops.power(i, x),
    "maximum": ops.maximum, "minimum": ops.minimum, "where": lambda x, i: ops.where(x > 1, x, i), "matmul": ops.matmul,
    "binary_cross_entropy": ops.binary_cross_entropy,
}
PLACES = {"take": ops.take, "gather": ops.gather, "getitem": lambda x, i: x[i], "embedding": lambda x, i: ops.embedding(i, x)}


@every_device
@every_float
@pytest.mark.parametrize("name, integers", [
    *[(name, kind) for name in BESIDE_FLOATS for kind in ("bool", "uint8", "int32", "int64")],
    *[(name, kind) for name in PLACES for kind in ("uint8", "int32", "int64")]])
def test_c58_integers_beside_floats_do_not_widen_them(name, integers, dtype, device):
    x, i = leaf([[0.5, 2], [1, 3]], dtype, device), mx.tensor([[1, 1], [1, 1]], dtype=integers, device=device)
    y = (BESIDE_FLOATS | PLACES)[name](x, i)
    assert y.dtype == dtype and mx.gradients(y.sum())[x].dtype == dtype


LIKE_NUMPY = {                  # m is numpy, or minitx.ops
    "sum": lambda m, i: m.sum(i), "mean": lambda m, i: m.mean(i, axis=0), "prod": lambda m, i: m.prod(i, axis=(0, 1)),
    "max": lambda m, i: m.max(i, axis=-1), "min": lambda m, i: m.min(i, axis=0, keepdims=True),
    "cumsum": lambda m, i: m.cumsum(i), "cumsum along": lambda m, i: m.cumsum(i, axis=0), "abs": lambda m, i: m.abs(i),
    "maximum": lambda m, i: m.maximum(i, i[::-1]), "where": lambda m, i: m.where(i > 0, i, i[::-1]),
    "power": lambda m, i: m.power(i, i), "add": lambda m, i: i + i, "div": lambda m, i: i / (i + 1),
    "matmul": lambda m, i: m.matmul(i, i.T), "clip": lambda m, i: i.clip(1, 2),
    "beside numbers": lambda m, i: m.add(2, m.add(i, 3)),
}


@every_device
@pytest.mark.parametrize("integers", ["bool", "uint8", "int32", "int64"])
@pytest.mark.parametrize("f", LIKE_NUMPY.values(), ids=LIKE_NUMPY)
def test_c58_integers_alone_go_through_as_in_numpy_and_are_not_tracked(f, integers, device):
    i = np.array([[1, 0, 2], [1, 1, 3]]).astype(integers)
    y, expected = f(ops, mx.tensor(i, device=device)), f(np, i)
    assert (y.dtype, y.requires_grad, y.node) == (expected.dtype, False, None)
    assert np.array_equal(y.numpy(), expected)


@every_device
def test_c58_floats_are_asked_for_where_integers_would_become_float64(device):
    i = mx.tensor([1, 2], device=device)
    for op in (ops.exp, ops.log, ops.sqrt, ops.var, ops.norm, ops.logsumexp, ops.softplus, ops.silu, ops.tanh):
        with pytest.raises(TypeError, match=rf"^{op.name}: x must be floating point numbers, but has dtype int64; convert it"):
            op(i)


# Attention in tiles: which heads go together, and how large their scores may be


@pytest.mark.parametrize("B, M, each, heads, sizes", [
    (5, 6, 1, 4, [(1, 4), (1, 2)] * 5),
    (3, 2, 1, 4, [(2, 2), (1, 2)]),
    (7, 1, 1, 4, [(4, 1), (3, 1)]),
    (2, 3, 2, 4, [(1, 4), (1, 2)] * 2),
    (2, 2, 3, 4, [(1, 3), (1, 3)] * 2),
    (2, 1, 6, 4, [(1, 6)] * 2),
    (3, 2, 2, 12, [(3, 4)]),
    (0, 2, 1, 4, []),
    (4, 2, 0, 4, [(4, 0)]),
    (2, 2, 0, 0, [(1, 0), (1, 0)] * 2),
])
def test_each_head_is_in_one_group_with_its_keys(B, M, each, heads, sizes):
    queries, keys = np.zeros((B, M * each), int), np.zeros((B, M), int)
    groups = flash.groups_of(B, M, each, heads)
    for b, n, m in groups:
        queries[b, n] += 1
        keys[b, m] += 1
        assert queries[b, n].size == keys[b, m].size * each
    assert (queries == 1).all() and (keys == 1).all()
    assert [queries[b, n].shape for b, n, _ in groups] == sizes


def test_the_bound_of_scores_is_made_of_the_longest_rows():
    assert flash.longest(np.array([[[[3.0, 4.0], [0.0, -1.0]]]])) == 5.0
    assert flash.longest(np.zeros((2, 1, 0, 3))) == 0.0
    assert flash.longest(np.full((1, 1, 2, 2), 1e30, "float32")) == np.inf, "and no warning"
