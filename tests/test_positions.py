"""Positions: what each way of telling them promises, shown on numbers. The number in a test's name is that of a case from the
field, where plausible code went wrong."""

import math

import numpy as np
import pytest

import minitx as mx
from minitx import nn, ops
from minitx.ops.positions import alibi_slopes, distance_bias, sinusoid

from .common import every_device, leaf, refused
from .harness import on_host

Q, K = np.array([1.0, 2, 3, 4]), np.array([4, -1, 2, 0.5])
PAIRINGS = ("halves", "neighbours")
every_pairing = pytest.mark.parametrize("pairing", PAIRINGS)


def turned(x, position, device="cpu", **options):
    """One vector at one position, or several at several: (..., K)."""
    x, places = np.atleast_2d(x), np.atleast_1d(position)
    y = ops.rotary(mx.tensor(x[None, None], device=device), mx.tensor(places, device=device), **options)
    return y.numpy()[0, 0].reshape(np.shape(position) + x.shape[-1:])


# Rotary


@every_device
@pytest.mark.parametrize("pairing, at_3, product", [
    ("neighbours", [-1.2722325127, -1.8388649851, 2.8786681004, 4.0881866356], -1.1475617947),
    ("halves", [-1.4133525208, 1.8791180667, -2.8288574817, 4.0581911354], -13.1544493003)])
def test_c25_two_pairings_and_the_product_tells_only_the_distance(pairing, at_3, product, device):
    np.testing.assert_allclose(turned(Q, 3, device, pairing=pairing), at_3, rtol=1e-9)
    for m in (2, 3, 7, 50):
        q, k = turned(Q, m, device, pairing=pairing), turned(K, m - 2, device, pairing=pairing)
        assert q @ k == pytest.approx(product, rel=1e-9)
        assert np.linalg.norm(q) == pytest.approx(math.sqrt(30), rel=1e-12)


def test_c25_halves_with_the_angles_of_neighbours_are_another_function():
    """The mixture that was found in the field: it is no turn, and its product moves with the place."""
    def mixed(x, m):
        angle = np.repeat(m * 10000.0 ** (-np.arange(0, 4, 2) / 4), 2)
        return x * np.cos(angle) + np.concatenate([-x[2:], x[:2]]) * np.sin(angle)

    assert np.ptp([mixed(Q, m) @ mixed(K, m - 2) for m in (2, 3, 7, 50)]) > 10
    assert abs(np.linalg.norm(mixed(Q, 3)) - math.sqrt(30)) > 0.3


@every_pairing
@pytest.mark.parametrize("options", [{}, {"rotated": 4}, {"base": 100.0}, {"stretch": 3.0}], ids=str)
def test_the_product_of_a_query_and_a_key_depends_on_their_distance_alone(pairing, options):
    q, k = np.random.default_rng(0).standard_normal((2, 8))
    places = np.arange(-3, 40)
    queries, keys = (turned(np.tile(x, (43, 1)), places, pairing=pairing, **options) for x in (q, k))
    products, distance = queries @ keys.T, places[:, None] - places
    of_distance = {d: products[distance == d] for d in range(-42, 43)}
    assert max(np.ptp(found) for found in of_distance.values()) < 1e-12
    assert np.ptp([found[0] for found in of_distance.values()]) > 0.5, "and it does depend on that"


@pytest.mark.parametrize("R", [2, 4, 8])
def test_c25_the_pairings_differ_by_an_order_of_the_channels(R):
    x, places = np.random.default_rng(0).standard_normal((5, 8)), np.arange(5)
    order = [*range(0, R, 2), *range(1, R, 2), *range(R, 8)]                 # first channels of all pairs, then the second
    halves = turned(x[:, order], places, pairing="halves", rotated=R)
    np.testing.assert_allclose(turned(x, places, pairing="neighbours", rotated=R)[:, order], halves, rtol=1e-14)
    assert np.array_equal(halves[:, R:], x[:, R:]), "channels beyond R pass"


@every_pairing
def test_c25_back_is_a_turn_by_the_opposite_angle(pairing):
    x, dy = np.random.default_rng(0).standard_normal((2, 1, 1, 4, 6))
    places = np.array([0, 1, 5, 900])
    _, backward = ops.rotary.vjp(x, places, pairing=pairing)
    np.testing.assert_allclose(backward(dy)[0], ops.rotary.vjp(dy, -places, pairing=pairing)[0], rtol=1e-13)


def test_stretched_positions_are_those_in_between():
    """Position interpolation: a text of 4 T symbols is squeezed into T positions, a quarter apart."""
    x = np.random.default_rng(0).standard_normal((5, 8))
    np.testing.assert_allclose(turned(x, 4 * np.arange(5), stretch=4.0), turned(x, np.arange(5)), rtol=1e-14)
    half_way = turned(Q, 1, stretch=2.0)
    np.testing.assert_allclose(turned(half_way, 1, stretch=2.0), turned(Q, 1), rtol=1e-14)


@every_pairing
def test_attention_with_turned_heads_may_begin_anywhere(pairing):
    """Only differences count: all positions moved by 1000, or other ones for each row, change nothing; other distances do."""
    mx.seed(0)
    attention = nn.MultiHeadAttention(8, 2, causal=True, rotary={"pairing": pairing}, dtype="float64")
    x = mx.tensor(np.random.default_rng(0).standard_normal((2, 5, 8)))
    y = attention(x).array
    for places in (np.arange(1000, 1005), np.arange(5) + np.array([[7], [-90]])):
        np.testing.assert_allclose(attention(x, positions=places).array, y, rtol=1e-11)
    assert abs(attention(x, positions=2 * np.arange(5)).array - y)[:, 1:].max() > 1e-3


def test_rotary_keeps_its_angles_exact_far_out():
    """Angles are computed in float64, whatever the dtype: in float32 position 100,003 would be off by a hundredth of a turn."""
    x = np.random.default_rng(0).standard_normal((1, 64))
    y, exact = turned(x.astype("float32"), [100_003]), turned(x, [100_003])
    assert y.dtype == "float32" and abs(y - exact).max() < 1e-6


def test_an_odd_width_is_refused_and_part_of_it_is_not():
    x = leaf(np.ones((1, 1, 2, 5)))
    refused(ValueError, lambda: ops.rotary(x, np.arange(2)), "rotary: rotated must be an even number of at most K = 5", "got 5")
    assert ops.rotary(x, np.arange(2), rotated=4).array[0, 0, 1, 4] == 1


# Sinusoids


@every_device
def test_c27_the_table_for_an_odd_width(device):
    right = [[0, 1, 0, 1, 0], [0.8414709848, 0.5403023059, 0.0251162229, 0.9996845379, 0.0006309573],
             [0.9092974268, -0.4161468365, 0.0502165994, 0.9987383507, 0.0012619144]]
    code = sinusoid(mx.tensor(np.arange(3), device=device).array, 5)
    np.testing.assert_allclose(on_host([code])[0], right, atol=5e-11)
    for D in (1, 7):
        model = mx.models.TransformerLM(3, D, 1, 1, None, positions="sinusoid").to(device)
        assert model(mx.tensor([[0, 1, 2]], device=device).array).shape == (1, 3, 3)


@pytest.mark.parametrize("shift", [1, 7, -3, 500])
@pytest.mark.parametrize("D", [2, 6, 32])
def test_a_shift_is_a_fixed_linear_map_of_the_code(shift, D):
    """sin(a + kω) and cos(a + kω) are mixed from sin a and cos a, in shares that know k and ω alone: the proof, as a matrix."""
    turn = np.zeros((D, D))
    for j in range(D // 2):
        angle = shift * 10000 ** (-2 * j / D)
        turn[2 * j:2 * j + 2, 2 * j:2 * j + 2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    places = np.arange(2000)
    np.testing.assert_allclose(sinusoid(places, D) @ turn, sinusoid(places + shift, D), atol=1e-11)
    np.testing.assert_allclose(turn @ turn.T, np.eye(D), atol=1e-12)


def test_nothing_but_the_distance_enters_the_product_of_two_codes():
    products = sinusoid(np.arange(60), 16) @ sinusoid(np.arange(60), 16).T
    for d in range(60):
        assert np.ptp(np.diagonal(products, d)) < 1e-12
    assert np.argmax(products[30]) == 30


def test_a_sinusoid_code_goes_on_anywhere():
    both = sinusoid(np.array([[5, 6], [0, 1]]), 4)
    assert np.array_equal(both[0], sinusoid(np.arange(5, 7), 4)) and np.array_equal(both[1], sinusoid(np.arange(2), 4))


# ALiBi


def published(n):
    """The slopes as the authors' code has them."""
    if math.log2(n).is_integer():
        start = 2 ** (-2 ** -(math.log2(n) - 3))
        return [start * start**i for i in range(n)]
    below = 2 ** math.floor(math.log2(n))
    return published(below) + published(2 * below)[0::2][:n - below]


@pytest.mark.parametrize("N", range(1, 34))
def test_the_slopes_are_those_of_the_authors(N):
    np.testing.assert_allclose(alibi_slopes(N), published(N), rtol=1e-12)
    assert len(set(alibi_slopes(N))) == N
    if N == 8:
        assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]


@every_device
def test_alibi_subtracts_the_distance_wherever_the_queries_begin(device):
    places = mx.tensor(np.arange(6), device=device).array
    bias, late = distance_bias(3, places, places), distance_bias(3, places[4:], places)
    whole, late = on_host([bias, late])
    assert np.array_equal(whole[:, 4:], late) and whole.shape == (3, 6, 6)
    for n, slope in enumerate(alibi_slopes(3)):
        assert whole[n, 5].tolist() == [-slope * d for d in range(5, -1, -1)]


def test_a_model_with_alibi_reads_beyond_any_length_and_far_symbols_fade():
    mx.seed(0)
    model = mx.models.TransformerLM(5, 8, 4, 1, None, positions="alibi", dtype="float64")
    ids = np.random.default_rng(0).integers(0, 5, (1, 300))
    changed = ids.copy()
    near, far = ids.copy(), ids.copy()
    near[0, -2], far[0, 0] = (ids[0, -2] + 1) % 5, (ids[0, 0] + 1) % 5
    last, near, far = (model(a).array[0, -1] for a in (changed, near, far))
    assert 0 < abs(far - last).max() < abs(near - last).max() / 5
