"""Panels: how to multiply few rows by the same matrix again and again, as a recurrence does.

Read next: `tensor.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from .backend import Array, array_module, device_of


def panels(W: Array, rows: int) -> Array:
    """W (K, N), to be multiplied by few rows again and again: cut into column panels (P, K, N/P).

    A product whose three lengths multiply to at most 10⁶ is done by OpenBLAS at once. For a larger one it first copies both
    factors into another order, which for few rows, as in a recurrence, takes as long as the product. W in one panel where that
    is small enough, or where panels do not help.
    """
    home, (K, N) = device_of(W), W.shape
    if not home.blas:
        return W
    P = next((P for P in (1, N // 64, N // 32, N // 16) if P and N % P == 0 and rows * K * N <= P * 1e6), 1)
    return home.xp.ascontiguousarray(W.reshape(K, P, N // P).swapaxes(0, 1))


def multiplier(W: Array, rows: int) -> Callable[[Array], Array]:
    """The function x -> x W for x (rows, K) and a W (K, N) that stays, in `panels`: (rows, N), in the same memory each time."""
    xp, parts = array_module(W), panels(W, rows)
    y = xp.empty((rows, W.shape[1]), W.dtype)
    by_panel = y.reshape(rows, *parts.shape[:-2], parts.shape[-1]).swapaxes(0, -2)

    def product(x: Array) -> Array:
        xp.matmul(x, parts, out=by_panel)
        return y

    return product
