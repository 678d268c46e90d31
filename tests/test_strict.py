"""The stand-in device refuses what CuPy refuses, counts what makes the host wait, and otherwise computes like NumPy."""

import copy
import gc
import operator
import pickle

import numpy as np
import pytest

import minitx as mx
from minitx import backend, randomness, sums

from . import strict
from .strict import xp


def device(*data, dtype=None):
    return xp.asarray(np.array(data, dtype))


@pytest.fixture
def x():
    """(2, 3) float64, 0 to 5."""
    return xp.asarray(np.arange(6.0).reshape(2, 3))


HOST = np.arange(3.0)
IDS = np.array([0, 1])

REFUSED = {
    # NumPy's arrays, in any place
    "np.asarray(x)": lambda x: np.asarray(x),
    "np.array([x, x])": lambda x: np.array([x, x]),
    "np.exp(x)": lambda x: np.exp(x),
    "np.sum(x)": lambda x: np.sum(x),
    "np.stack([x])": lambda x: np.stack([x]),
    "memoryview(x)": lambda x: memoryview(x),
    "host[...] = x": lambda x: operator.setitem(HOST.copy(), ..., x[0]),
    "host[x]": lambda x: HOST[x.astype(int)],
    "host += x": lambda x: operator.iadd(HOST.copy(), x[0]),
    "host + x": lambda x: HOST + x,
    "host < x": lambda x: operator.lt(HOST, x),
    "x + host": lambda x: x + HOST,
    "x += host": lambda x: operator.iadd(x, HOST),
    "x[0] = host": lambda x: operator.setitem(x, 0, HOST),
    "x[host]": lambda x: x[IDS],
    "x[:, host]": lambda x: x[:, IDS],
    "x[[host]]": lambda x: x[[IDS]],
    "xp.exp(host)": lambda x: xp.exp(HOST),
    "xp.sum(host)": lambda x: xp.sum(HOST),
    "xp.stack([x, host])": lambda x: xp.stack([x[0], HOST]),
    "xp.where(c, x, host)": lambda x: xp.where(x > 0, x, HOST),
    "xp.add(x, x, out=host)": lambda x: xp.add(x[0], x[0], out=HOST.copy()),
    "x.sum(out=host)": lambda x: x.sum(0, out=HOST.copy()),
    "xp.add.at(x, host, 1)": lambda x: xp.add.at(x, IDS, 1.0),
    # lists in place of arrays
    "x + list": lambda x: x + [1, 2, 3],
    "x == None": lambda x: x == None,     # noqa: E711
    "xp.exp(list)": lambda x: xp.exp([1.0]),
    "x[0] = list": lambda x: operator.setitem(x, 0, [1, 2, 3]),
    # device arrays in place of Python's integers
    "range(n)": lambda x: range(x[0, 1].astype(int)),
    "list[n]": lambda x: [1, 2][x[0, 1].astype(int)],
    "x[:n]": lambda x: x[:x[0, 1].astype(int)],
    "xp.zeros(n)": lambda x: xp.zeros(x[0, 1].astype(int)),
    "xp.zeros((n, 2))": lambda x: xp.zeros((x[0, 1].astype(int), 2)),
    "x.reshape(n)": lambda x: x.reshape(device(6)[0]),
    "xp.reshape(x, n)": lambda x: xp.reshape(x, device(6)[0]),
    # options
    "sum(where=)": lambda x: x.sum(where=True),
    "max(initial=)": lambda x: x.max(initial=0),
    "xp.mean(where=)": lambda x: xp.mean(x, where=True),
    "xp.var(where=)": lambda x: xp.var(x, where=True),
    "xp.add(where=)": lambda x: xp.add(x, x, where=True),
    "xp.add.reduce(where=)": lambda x: xp.add.reduce(x, where=True),
    "xp.zeros(device=)": lambda x: xp.zeros(3, device="cpu"),
    "xp.einsum(out=)": lambda x: xp.einsum("ij->i", x, out=x[:, 0]),
    "xp.take(mode=)": lambda x: xp.take(x, device(0), mode="clip"),
    "x.take(mode=)": lambda x: x.take(device(0), mode="clip"),
    "xp.unique(sorted=)": lambda x: xp.unique(x, sorted=False),
    "x.item(0)": lambda x: x.item(0),
    # dtypes and operations without a kernel
    "int64 add.at": lambda x: xp.add.at(xp.zeros(3, int), device(0, 0), device(1, 2)),
    "float16 maximum.at": lambda x: xp.maximum.at(x.astype("float16"), device(0, 0), 1.0),
    "float to int, in place": lambda x: operator.iadd(x.astype(int), 0.5),
    # what Python would do one element after the other, or not at all
    "1.0 in x": lambda x: 1.0 in x,
    "hash(x)": lambda x: hash(x),
    "len(0-d)": lambda x: len(x.sum()),
    "iter(0-d)": lambda x: list(x.sum()),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_a_type_error_where_cupy_has_one(x, refused):
    with strict.syncs() as waits, pytest.raises(TypeError):
        refused(x)
    assert not waits        # it was not answered by way of the host


@pytest.mark.parametrize("name", ["errstate", "vecdot", "einsum_path", "nditer", "block", "insert", "random.PCG64",
                                  "linalg.vecdot", "add.resolve_dtypes", "ndarray.setflags"])
def test_names_that_cupy_lacks_do_not_exist(name):
    operator.attrgetter(name)(np)
    with pytest.raises(AttributeError):
        operator.attrgetter(name)(xp)


@pytest.mark.parametrize("name", ["setflags", "resize", "ctypes", "byteswap", "__imatmul__", "__index__",
                                  "__array_interface__", "__array_struct__", "__dlpack__"])
def test_attributes_that_cupy_arrays_lack_do_not_exist(x, name):
    assert hasattr(np.ndarray, name)
    with pytest.raises(AttributeError):
        getattr(x, name)


def test_ufuncs_without_a_kernel_for_it():
    for refused in (lambda: xp.maximum.reduce(device(1.0)), lambda: xp.minimum.accumulate(device(1.0)),
                    lambda: xp.multiply.at(device(1.0), device(0), 2.0)):
        with pytest.raises(NotImplementedError):
            refused()
    assert xp.add.reduce(device(1.0, 2.0)).item() == 3


def test_the_random_generator_has_the_18_methods_of_cupy():
    rng = xp.random.default_rng(0)
    assert len([n for n in dir(rng) if not n.startswith("_")]) == 18
    drawn = rng.random((2, 3), dtype="float32")
    assert type(drawn) is xp.ndarray and drawn.dtype == "float32"
    keep = randomness.keep_mask(rng, (4, 5), 0.5, "strict")
    assert type(keep) is xp.ndarray and keep.dtype == bool
    for name in ("normal", "choice", "permutation", "shuffle", "multinomial", "gumbel", "spawn", "bit_generator"):
        assert not hasattr(rng, name)


# What comes back


def test_reductions_and_single_elements_are_0d_device_arrays(x):
    for y in (x.sum(), xp.max(x), x[0, 1], x.mean(0)[1], xp.exp(1.0), xp.array_equal(x, x), x[0, 0] + x[0, 1], *x[0]):
        assert type(y) is xp.ndarray and y.shape == ()


def test_an_element_is_a_view_as_a_slice_is(x):
    x[0, 1][...] = 10
    x[1][2:][0] += 20
    assert x.tolist() == [[0, 10, 2], [3, 4, 25]]


def test_in_place_operators_write_and_return_self(x):
    for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"):
        y = x + 1
        was, expected = y, getattr(operator, name)(y.get(), 2.0)
        y = getattr(operator, name)(y, 2.0)
        assert y is was and (y.get() == expected).all()
    mask = x > 2
    for name in ("iand", "ior", "ixor"):
        assert getattr(operator, name)(mask, x > 3) is mask
    out = xp.empty((2, 3))
    assert xp.add(x, x, out=out) is out and xp.tanh(x, out=out) is out and xp.multiply(x, 2, out=(out,)) is out


def test_at_equals_does_not_write_in_place():
    """As CuPy has no `__imatmul__`, Python makes a new array; NumPy would write into the old one."""
    y = x = xp.eye(2)
    y @= xp.ones((2, 2))
    assert y is not x and x.tolist() == [[1, 0], [0, 1]]


def test_tuples_and_lists_are_wrapped_inside(x):
    for parts in (xp.split(x, 3, axis=1), xp.linalg.svd(x), xp.nonzero(x), xp.unique(x, return_counts=True)):
        assert all(type(part) is xp.ndarray for part in parts)
    assert type(xp.linalg.svd(x).S) is xp.ndarray


def test_integer_arrays_wrap_around_silently_where_python_integers_raise(x):
    assert x[device(2, -3)].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x[1:, None, ..., device(3, 4)].tolist() == [[[3, 4]]]
    assert x[[5]].tolist() == [[3, 4, 5]]
    assert x.take(device(6)).tolist() == [0] and xp.take(x, device(4), axis=1).tolist() == [[1], [4]]
    x[device(2), device(5)] = 9
    xp.add.at(x, (slice(None), device(3)), 1.0)
    assert x.tolist() == [[1, 1, 9], [4, 4, 5]]
    with pytest.raises(IndexError):
        x[2]
    with pytest.raises(IndexError):
        x[:, :, device(0)]
    with pytest.raises(IndexError):
        xp.zeros((0, 3))[device(0)]


def test_each_integer_array_wraps_around_its_own_axis():
    y = xp.arange(24).reshape(2, 3, 4)
    assert y[1, ..., device(5)].tolist() == [[13, 17, 21]]
    assert y[y[..., 0] > 10, device(5)].tolist() == [13, 17, 21]


def test_masks_and_lists_index_as_in_numpy(x):
    assert x[x > 3].tolist() == [4, 5] and x[[]].shape == (0, 3) and x[[True, False]].tolist() == [[0, 1, 2]]
    x[x > 3] = 0
    counts = xp.zeros(3, int)
    xp.add.at(counts, x[1] == 0, 1)         # no atomics needed, so any dtype will do
    assert x[1, ::-1].tolist() == [0, 0, 3] and counts.tolist() == [0, 1, 1]


def test_a_0d_index_gives_a_copy(x):
    x[device(1, 0)[0]][...] = 9
    assert x[1].tolist() == [3, 4, 5]


def test_scalars_of_numpy_and_tensors_may_stand_on_either_side(x):
    for y in (np.float64(2) * x, x * np.float64(2), 2 * x, x * 2):
        assert type(y) is xp.ndarray and y.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert type(np.float64(2) > x) is xp.ndarray
    for z in (x + mx.Tensor(x), mx.Tensor(x) + x):
        assert type(z) is mx.Tensor and z.device == "strict"


def test_base_counts_memory(x):
    a, b = x[0], x.T
    assert a.base is x and b.base is x and b[1:].base is x and x.base is None and (x + 1).base is None
    assert x.astype("float64", copy=False) is x and x.copy().base is None

    def backward():
        return a, b

    assert [(kept.name, kept.bytes) for kept in mx.saved(backward)] == [("a", 48), ("b", 0)]


def test_a_device_array_around_a_read_only_array_refuses_writes():
    host = np.ones(3)
    host.flags.writeable = False
    x = strict.wrap(host)
    for write in (lambda: operator.iadd(x, 1), lambda: operator.setitem(x, 0, 2), lambda: xp.add.at(x, device(0), 1.0),
                  lambda: operator.setitem(x[1:], ..., 2), lambda: xp.tanh(x, out=x), lambda: xp.copyto(x, 0.0),
                  lambda: x.fill(2), lambda: x.view().sort()):
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert strict.wrap(host) is x and (x + 1).tolist() == [2, 2, 2] and x.copy().fill(2) is None


def test_arrays_go_when_nothing_holds_them():
    gc.collect()
    before = len(strict._known)
    x = xp.ones((2, 3))
    y = x.T[1:]
    assert len(strict._known) == before + 2
    del x
    assert y.base.shape == (2, 3)
    del y
    assert len(strict._known) == before


def test_copies_are_copies(x):
    for y in (copy.copy(x), copy.deepcopy([x])[0], pickle.loads(pickle.dumps(x)), xp.array(x), x.get()):
        y[0, 0] = 7
    assert x[0, 0].item() == 0 and xp.asarray(x) is x


# Waiting


@pytest.mark.parametrize("wait, why", [
    (float, "float"), (int, "int"), (bool, "bool"), (lambda x: x.item(), "item"), (lambda x: x.get(), "get"),
    (xp.asnumpy, "get"), (lambda x: f"{x:.3f}", "format"), (repr, "repr"), (lambda x: x.tolist(), "tolist"),
    (backend.to_host, "get"), (lambda x: 1 if x > 2 else 0, "bool"), (lambda x: x.reshape(1)[device(True)], "mask"),
    (lambda x: xp.nonzero(x.reshape(1)), "nonzero"), (lambda x: xp.where(x.reshape(1)), "where")])
def test_every_wait_for_the_device_is_counted(wait, why):
    x = xp.asarray(1.25)
    with strict.syncs() as waits:
        wait(x)
    assert waits == [why]


def test_computing_does_not_wait(x):
    with strict.syncs() as waits:
        y = xp.tanh(x @ x.T).sum(0)
        y[0] = y[1]
        y += x[device(0), device(1)] * (y > 2)
        sums.scatter_add(device(0, 1), x, 3)
    assert not waits


# Training


def train(name, steps=4):
    """A character model: embedding, LSTM, linear, cross entropy, and plain SGD. Losses, parameters, waits of a step."""
    rng = np.random.default_rng(0)
    V, D, H, B, T = 11, 5, 7, 3, 6
    shapes = {"table": (V, D), "W": (D, 4 * H), "U": (H, 4 * H), "b": (4 * H,), "out": (H, V), "bias": (V,)}
    host = {n: (rng.standard_normal(s) / 2).astype("float32") for n, s in shapes.items()}
    p = {n: mx.tensor(a, device=name, requires_grad=True) for n, a in host.items()}
    ids = rng.integers(0, V, (steps, B, T + 1))
    zero = mx.tensor(np.zeros((B, H), "float32"), device=name)
    losses = []
    for batch in ids:
        x, y = (mx.tensor(i, device=name) for i in (batch[:, :-1], batch[:, 1:]))
        with strict.syncs() as waits:
            hs, _, _ = mx.ops.lstm(mx.ops.embedding(x, p["table"]), zero, zero, p["W"], p["U"], p["b"])
            loss = mx.ops.cross_entropy(mx.ops.linear(hs, p["out"], p["bias"]), y)
            for leaf, grad in mx.gradients(loss).items():
                leaf.assign_(leaf.array - 0.5 * grad)
        losses.append(loss.item())
    return losses, {n: t.numpy() for n, t in p.items()}, waits


def test_training_is_bit_identical_to_numpy_and_waits_for_the_checks_of_ids_alone():
    losses, parameters, waits = train("strict")
    expected_losses, expected, none = train("cpu")
    assert losses == expected_losses and losses[-1] < losses[0] and not none
    assert all((parameters[n] == expected[n]).all() for n in expected)
    assert waits == ["bool", "bool"]         # once for the ids, once for the targets
