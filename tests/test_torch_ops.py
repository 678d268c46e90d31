"""The ops that users of NumPy and PyTorch expect, with all their options, against live PyTorch: values and gradients.

Names differ in places, conventions in few: our mean of `kl_divergence` is over rows ("batchmean"), and `take` and `gather`
refuse negative ids. What happens at kinks is in `test_subgradients.py`.
"""

import math

import numpy as np
import pytest

import minitx as mx

from .test_torch import F, agree, normal, torch

pytestmark = pytest.mark.torch

CASES = []


def compare(name, theirs, *args, **static):
    CASES.append(pytest.param(name, theirs, args, static, id=f"{name}-{len(CASES)}"))


def positive(*shape, seed=0):
    return np.exp(normal(*shape, seed=seed) / 2)


def over(reduce):
    """A PyTorch reduction whose `dim` must not be None."""
    return lambda axis, keepdims, **static: lambda x: reduce(x, dim=tuple(range(x.ndim)) if axis is None else axis,
                                                             keepdim=keepdims, **static)


# Element by element

for name, f in [("neg", torch.neg), ("exp", torch.exp), ("abs", torch.abs), ("sigmoid", torch.sigmoid), ("tanh", torch.tanh),
                ("relu", torch.relu), ("softplus", F.softplus), ("silu", F.silu)]:
    compare(name, f, 3 * normal(4, 5, 6))
for name, f in [("log", torch.log), ("sqrt", torch.sqrt)]:
    compare(name, f, positive(4, 5))
compare("gelu", F.gelu, 3 * normal(4, 5), approximate="none")
compare("gelu", lambda x: F.gelu(x, approximate="tanh"), 3 * normal(4, 5), approximate="tanh")
for low, high in [(-0.5, 0.7), (0.1, None), (None, -0.3)]:
    compare("clip", lambda x, low=low, high=high: torch.clamp(x, low, high), normal(4, 5), low=low, high=high)

# Two arrays that broadcast

for x, y in [((4, 5), (4, 5)), ((3, 1, 5), (4, 1)), ((5,), (2, 3, 5)), ((), (2, 3)), ((1,), (2, 3))]:
    for name, f in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("maximum", torch.maximum),
                    ("minimum", torch.minimum)]:
        compare(name, f, normal(*x), normal(*y, seed=1))
    compare("div", torch.div, normal(*x), positive(*y))
    compare("power", torch.pow, positive(*x), normal(*y))
    compare("where", torch.where, normal(*np.broadcast_shapes(x, y), seed=2) > 0, normal(*x), normal(*y, seed=1))
for exponent in (2, 3, -1, 1, 0.5, -1.5):
    compare("power", torch.pow, positive(4, 5), exponent)
for base in (2, 0.3):
    compare("power", torch.pow, base, normal(4, 5))
compare("power", torch.pow, normal(4, 3), np.array([2, 3, -1]))
for x, y in [((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((1, 2, 3), (5, 3, 4)), ((2, 1, 2, 3), (3, 3, 2)),
             ((3,), (2, 3, 4)), ((2, 2, 3), (3,))]:
    compare("matmul", torch.matmul, normal(*x), normal(*y, seed=1))

# Reductions

for keepdims in (False, True):
    for axis in (0, -1, (0, 2), (-1, 1), None):
        static = {"axis": axis, "keepdims": keepdims}
        for name, f in [("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax), ("min", torch.amin),
                        ("logsumexp", torch.logsumexp), ("norm", torch.linalg.vector_norm)]:
            compare(name, over(f)(**static), normal(3, 4, 5), **static)
        for ddof in (0, 1, 2):
            compare("var", over(torch.var)(**static, correction=ddof), normal(3, 4, 5), **static, ddof=ddof)
    for axis in (0, 1, -1):
        compare("prod", over(torch.prod)(axis, keepdims), normal(3, 4, 5), axis=axis, keepdims=keepdims)
compare("prod", torch.prod, normal(2, 3, 2))
compare("prod", lambda x: x.flatten(1).prod(1), normal(3, 2, 4), axis=(1, 2))
compare("prod", lambda x: x.prod(1), np.array([[2.0, 3, 4], [2, 0, 4], [0, 3, 0]]), axis=1)
compare("max", lambda x: x.amax(1), np.array([[1.0, 3, 3], [2, 2, 2]]), axis=1)                # they share at a tie too
for axis in (0, 1, -1):
    compare("cumsum", lambda x, axis=axis: torch.cumsum(x, axis), normal(3, 4, 5), axis=axis)
compare("cumsum", lambda x: torch.cumsum(x.flatten(), 0), normal(3, 4))

# Places

compare("reshape", lambda x: x.reshape(4, -1), normal(2, 3, 4), shape=(4, -1))
compare("transpose", lambda x: x.permute(2, 0, 1), normal(2, 3, 4), axes=(2, 0, -2))
compare("transpose", lambda x: x.permute(2, 1, 0), normal(2, 3, 4))
compare("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), normal(2, 3), widths=((0, 3), (1, 2)), value=0.5)
compare("pad", lambda x: F.pad(x, (1, 1, 1, 1)), normal(2, 3), widths=1)
compare("concatenate", lambda *xs: torch.cat(xs, 1), normal(2, 3), normal(2, 1), normal(2, 4), axis=1)
compare("stack", lambda *xs: torch.stack(xs, 1), normal(2, 3), normal(2, 3, seed=1), axis=1)
compare("unstack", lambda x: torch.unbind(x, 1), normal(2, 3, 4), axis=1)
compare("split", lambda x: torch.split(x, [1, 3], 1), normal(2, 4), sections=(1, 3), axis=1)
compare("split", lambda x: torch.chunk(x, 3, -1), normal(2, 6), sections=3)
for index in [1, (slice(None), -1), (slice(1, None), None, slice(None, None, 2)), [2, 0, 2], (..., [1, 1])]:
    compare("getitem", lambda x, index=index: x[index], normal(3, 4, 5), index=index)
compare("take", lambda x, ids: x[ids], normal(4, 3), np.array([[1, 1, 3], [0, 1, 3]]))
compare("take", lambda x, ids: x.index_select(-1, ids), normal(2, 4, 3), np.array([2, 2, 0, 1]), axis=-1)
for axis, lengths in [(0, (6, 4)), (1, (3, 2)), (-1, (3, 7))]:
    ids = np.arange(math.prod(lengths)).reshape(lengths) ** 2 % (3, 4)[axis]
    compare("gather", lambda x, ids, axis=axis: x.gather(axis, ids), normal(3, 4), ids, axis=axis)

# Norms and losses

for eps in (1e-6, 0.1):
    compare("rms_norm", lambda x, gamma, eps=eps: F.rms_norm(x, (6,), gamma, eps), normal(3, 4, 6), normal(6), eps=eps)
truth = np.random.default_rng(0).random((4, 3))
for reduction in ("mean", "sum", "none"):
    compare("mse", lambda y, t, reduction=reduction: F.mse_loss(y, t, reduction=reduction),
            normal(4, 3), normal(4, 3, seed=1), reduction=reduction)
    for target in (truth, truth < 0.5, np.arange(12).reshape(4, 3) % 2):
        compare("binary_cross_entropy", lambda x, t, reduction=reduction:
                F.binary_cross_entropy_with_logits(x, t.double(), reduction=reduction),
                3 * normal(4, 3), target, reduction=reduction)
compare("kl_divergence", lambda q, p: F.kl_div(q, p, reduction="batchmean"), normal(4, 3), truth)
compare("kl_divergence", lambda q, p: F.kl_div(q, p, reduction="sum"), normal(4, 3), truth, reduction="sum")
compare("kl_divergence", lambda q, p: F.kl_div(q, p, reduction="none").sum(-1), normal(4, 3), truth, reduction="none")


@pytest.mark.parametrize("name, theirs, args, static", CASES)
def test_values_and_gradients_equal_those_of_pytorch(name, theirs, args, static):
    agree(mx.OPS[name], theirs, *args, **static)


def test_no_op_is_left_out():
    files = {"basic", "powers", "extremes", "reductions", "shaping", "indexing", "losses"}
    ours = {op.name for op in mx.OPS.values() if op.__module__.split(".")[-1] in files}
    assert ours <= {case.values[0] for case in CASES} and len(ours) > 30
