"""What theory says a recurrence does to a gradient, to be laid beside what was recorded.

One step back multiplies by a Jacobian, dh_{t-1} = dh_t J_t, and for the plain net J_t = diag(f'(a_t)) Uᵀ is known from the
states. So everything about the product of many of them can be computed without going back at all:

    singular values    how much the product stretches the most, and the least, favoured direction
    Lyapunov exponents their growth rates per step: positive explodes, negative vanishes
    forget product     what an LSTM's memory path alone lets through, ∏ f

All on the host, in float64, from plain arrays: states (B, T, H) as `minitx.record` gives them.

Read next: `docs/derivations/bptt.md`, which derives it; `examples/theory_of_gradients.py` lays it beside the recorder.
"""

from __future__ import annotations

import numpy as np

from .ops.recurrent import activation_of


def jacobians(hs: np.ndarray, U: np.ndarray, activation: str = "tanh") -> np.ndarray:
    """J_t = diag(f'(a_t)) Uᵀ of every step of a plain recurrent net, (B, T, H, H): dh_{t-1} = dh_t J_t.

    hs (B, T, H) are the states that the steps returned, U (H, H) the recurrent weights.
    """
    return _jacobians("jacobians", hs, U, activation)


def _jacobians(caller: str, hs: np.ndarray, U: np.ndarray, activation: str) -> np.ndarray:
    hs, U = states(caller, hs), np.asarray(U, "float64")
    _, slope = activation_of(caller, activation)
    H = hs.shape[2]
    if U.shape != (H, H) or not np.isfinite(U).all():
        given = "numbers that are not finite" if U.shape == (H, H) else f"shape {U.shape}"
        raise ValueError(f"{caller}: U has {given}; expected the recurrent weights of a net whose states are (B, T, {H}), "
                         f"finite numbers {(H, H)}")
    return (slope(hs) * np.ones_like(hs))[..., None] * U.T


def singular_values(hs: np.ndarray, U: np.ndarray, activation: str = "tanh") -> np.ndarray:
    """The singular values, largest first, of ∂h_T/∂h_t = J_T … J_{t+1} for every step t = 1 … T: (B, T, H).

    The last row is that of no step at all: ones. Every step rounds the product to 1e-16 of its largest value, so a value of r
    times the largest is exact to about 1e-15/r of itself. Those below 1e-14 times the largest are given as NaN; `lyapunov`
    keeps the small ones too.
    """
    J = _jacobians("singular_values", hs, U, activation)
    B, T, H, _ = J.shape
    product, scale, found = np.tile(np.eye(H), (B, 1, 1)), np.zeros((B, 1)), np.empty((B, T, H))
    for t in reversed(range(T)):
        values = np.linalg.svd(product, compute_uv=False)                                    # (B, H)
        with np.errstate(over="ignore"):
            found[:, t] = np.where(values > 1e-14 * values[:, :1], values * np.exp(scale), np.nan)
        product = product @ J[:, t]
        size = abs(product).max((1, 2))[:, None]                                             # (B, 1), taken out: no underflow
        size[size == 0] = 1
        product, scale = product / size[..., None], scale + np.log(size)
    return found


def lyapunov(hs: np.ndarray, U: np.ndarray, activation: str = "tanh") -> np.ndarray:
    """The growth rates, per step, of the H directions of a gradient on its way back through all T steps: (B, H), largest first.

    The first is the largest Lyapunov exponent: over many steps ‖dh‖ changes by e^λ each. The method keeps the directions
    apart by a QR decomposition at every step, so that small ones are not drowned by rounding.

    Source  Benettin, Galgani, Giorgilli & Strelcyn 1980; for recurrent nets: Engelken et al. 2023, arXiv 2006.02427
    """
    J = _jacobians("lyapunov", hs, U, activation)
    B, T, H, _ = J.shape
    if not T:
        raise ValueError("lyapunov: hs has no steps; give states of at least one")
    Q, logs = np.tile(np.eye(H), (B, 1, 1)), np.zeros((B, H))
    for t in reversed(range(T)):
        Q, R = np.linalg.qr(J[:, t].swapaxes(1, 2) @ Q)
        with np.errstate(divide="ignore"):                                                   # a direction that is lost: -inf
            logs += np.log(abs(np.diagonal(R, axis1=1, axis2=2)))
    return np.sort(logs / T, axis=-1)[:, ::-1]


def forget_product(f: np.ndarray) -> np.ndarray:
    """∏ f over all steps behind t, for every t: (B, T, H), from the forget gates f (B, T, H); the last row is ones.

    On the path along an LSTM's memory, dc_t = dc_T ∘ this.
    """
    f = states("forget_product", f)
    behind = np.concatenate([f[:, 1:], np.ones_like(f[:, :1])], axis=1)
    return np.cumprod(behind[:, ::-1], axis=1)[:, ::-1]


def states(caller: str, x: np.ndarray) -> np.ndarray:
    """x as float64 (B, T, H), or an error in the name of the caller."""
    x = np.asarray(x, "float64")
    if x.ndim != 3:
        raise ValueError(f"{caller}: expected states (B, T, H), got shape {x.shape}; give log[path]['output'] of a recorder")
    if np.isnan(x).any():
        raise ValueError(f"{caller}: some states are NaN, of which theory says nothing; give the steps before the net blew up")
    return x
