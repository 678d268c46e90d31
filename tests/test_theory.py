"""Theory next to measurement: the Jacobians of a recurrence, their products, and what the recorder sees."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from minitx import ops, theory

from .common import refused

rng = np.random.default_rng(0)
B, T, D, H = 2, 9, 3, 4


def net(gain=1.2, activation="tanh"):
    """Inputs and weights of a small net, its states, and its way back."""
    x, h0, W = rng.standard_normal((B, T, D)), rng.standard_normal((B, H)), rng.standard_normal((D, H)) / 2
    U = gain * np.linalg.qr(rng.standard_normal((H, H)))[0]
    (hs, _), backward = ops.rnn.vjp(x, h0, W, U, np.zeros(H), activation=activation)
    return hs, U, backward


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
def test_the_product_of_the_jacobians_is_what_backward_does(activation):
    hs, U, backward = net(activation=activation)
    J = theory.jacobians(hs, U, activation)
    for unit in np.eye(H):
        dh0 = backward(np.zeros_like(hs), np.broadcast_to(unit, (B, H)))[1]
        for b in range(B):
            by_theory = unit
            for t in reversed(range(T)):
                by_theory = by_theory @ J[b, t]
            np.testing.assert_allclose(dh0[b], by_theory, rtol=1e-12, atol=1e-15)


def test_singular_values_are_those_of_the_explicit_product():
    hs, U, _ = net()
    found, J = theory.singular_values(hs, U), theory.jacobians(hs, U)
    assert (found[:, -1] == 1).all()
    for b in range(B):
        product = np.eye(H)
        for t in reversed(range(1, T)):
            product = product @ J[b, t]
            np.testing.assert_allclose(found[b, t - 1], np.linalg.svd(product, compute_uv=False), rtol=1e-9)


@pytest.mark.parametrize("s", [1.1, 1.0, 0.9])
def test_a_linear_net_is_known_in_closed_form(s):
    T, turn = 100, np.array([[math.cos(0.7), math.sin(0.7)], [-math.sin(0.7), math.cos(0.7)]])
    hs = np.zeros((1, T, 2))
    np.testing.assert_allclose(theory.lyapunov(hs, s * turn, "linear"), math.log(s), atol=1e-13)
    np.testing.assert_allclose(theory.singular_values(hs, s * turn, "linear")[0, :, 0], s ** np.arange(T - 1, -1, -1.0))


def test_exponents_add_up_to_the_volume_and_the_largest_is_the_rate_of_a_gradient():
    hs, U, _ = net()
    exponents, J = theory.lyapunov(hs, U), theory.jacobians(hs, U)
    np.testing.assert_allclose(exponents.sum(-1), np.log(abs(np.linalg.det(J))).mean(1), rtol=1e-12)

    long = np.zeros((1, 2000, H))
    U = np.diag([0.9, 0.5, 0.2, 0.1]) @ np.linalg.qr(rng.standard_normal((H, H)))[0]
    np.testing.assert_allclose(theory.lyapunov(long, U, "linear")[0, 0], np.log(abs(np.linalg.eigvals(U)).max()), atol=5e-3)


def test_far_below_what_a_float_can_hold_the_exponents_are_still_right():
    hs = np.zeros((1, 3000, 2))
    np.testing.assert_allclose(theory.lyapunov(hs, np.diag([0.5, 1e-3]), "linear"), [[math.log(0.5), math.log(1e-3)]])
    values = theory.singular_values(hs, np.diag([0.5, 1e-3]), "linear")[0]
    assert values[0, 0] == 0 and np.isnan(values[-10, 1]) and values[-3].tolist() == pytest.approx([0.25, 1e-6])
    assert theory.lyapunov(np.zeros((1, 5, 1)), np.zeros((1, 1)))[0, 0] == -math.inf


def test_along_the_memory_alone_an_lstm_multiplies_by_its_forget_gates():
    """With U = 0 nothing comes through h, so the recorded dc is dc_T times the product."""
    x, h0, c0 = rng.standard_normal((B, T, D)), np.zeros((B, H)), np.zeros((B, H))
    seen = {}
    outs, backward = ops.lstm.vjp(x, h0, c0, rng.standard_normal((D, 4 * H)), np.zeros((H, 4 * H)), np.zeros(4 * H),
                                  watch=lambda name, array, t: seen.setdefault(name, {}).update({t: array.copy()}))
    dc = rng.standard_normal((B, H))
    backward(np.zeros_like(outs[0]), np.zeros((B, H)), dc)
    f, recorded = (np.stack([seen[name][t] for t in range(T)], 1) for name in ("f", "dc"))
    np.testing.assert_allclose(recorded, dc[:, None] * theory.forget_product(f), rtol=1e-12)


def test_what_are_no_states_is_refused():
    refused(ValueError, lambda: theory.jacobians(np.zeros((2, 3)), np.eye(3)), "jacobians:", "(B, T, H)", "(2, 3)")
    refused(ValueError, lambda: theory.lyapunov(np.zeros((1, 0, 3)), np.eye(3)), "lyapunov:", "no steps")
    refused(ValueError, lambda: theory.jacobians(np.zeros((1, 1, 1)), np.eye(1), "sin"), "jacobians: activation", "'sin'")


@pytest.mark.parametrize("function", [theory.jacobians, theory.singular_values, theory.lyapunov], ids=lambda f: f.__name__)
def test_weights_and_states_that_theory_cannot_use_are_refused_by_name(function):
    hs, U, name = np.zeros((2, 4, 3)), np.eye(3), function.__name__
    for wrong in (np.eye(2), U[0], np.zeros((3, 4)), U[None]):
        refused(ValueError, lambda wrong=wrong: function(hs, wrong), f"{name}: U has shape {wrong.shape}", "(3, 3)")
    for number in (math.nan, math.inf):
        refused(ValueError, lambda number=number: function(hs, U + number), f"{name}: U has numbers that are not finite")
    refused(ValueError, lambda: function(hs + math.nan, U), f"{name}: some states are NaN")
    refused(ValueError, lambda: function(hs, U, "sin"), f"{name}: activation must be one of")


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_singular_values_are_as_exact_as_it_says(seed):
    """Of U⁻¹ … U⁻¹, computed from the inverse, the largest is one over the smallest of U … U."""
    T, rng = 40, np.random.default_rng(seed)
    one, other = (np.linalg.qr(rng.standard_normal((4, 4)))[0] for _ in range(2))
    U = one @ np.diag([1.0, 0.7, 0.3, 0.15]) @ other
    found, inverse = (theory.singular_values(np.zeros((1, T, 4)), M, "linear")[0] for M in (U, np.linalg.inv(U)))
    smallest, exact = found[:, -1], 1 / inverse[:, 0]
    ratio, shown = exact / found[:, 0], ~np.isnan(smallest)
    assert 20 < shown.sum() < T and ratio[shown].min() > 1e-14 > ratio[~shown].max()
    assert (abs(smallest / exact - 1)[shown] < 2e-15 / ratio[shown]).all()


def test_the_example_lays_both_side_by_side(tmp_path, monkeypatch, capsys):
    path = Path(__file__).parent.parent / "examples" / "theory_of_gradients.py"
    spec = importlib.util.spec_from_file_location("theory_of_gradients", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", ["theory_of_gradients.py", "--out", str(tmp_path)])
    for name, value in dict(T=30, B=2, H=10, D=5).items():
        monkeypatch.setattr(example, name, value)
    example.main()
    nets = json.loads((tmp_path / "theory_of_gradients.json").read_text())["nets"]
    exact = [net for net in nets if "linear" in net["net"]]
    assert len(exact) == 3 and all(net["error"] < 1e-10 for net in exact)
    assert all(net["error"] < 1e-9 for net in nets if "tanh" in net["net"]), "no gradient is longer than it can be"
    assert all(0 < net["share"] for net in nets if "LSTM" in net["net"])
    assert "BROKEN" not in capsys.readouterr().out and (tmp_path / "theory_of_gradients.png").stat().st_size > 10_000
    assert "BROKEN" in example.table([{"net": "tanh RNN, gain 1", "theory": 0, "measured": 0, "error": 1e-3}])
