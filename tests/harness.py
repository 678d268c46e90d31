"""What the tests of the contract have in common: devices, samples, one run of an op, layouts of memory, planted faults.

Read next: `samples.py`.
"""

import functools
import importlib.util
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from minitx import backend
from minitx.op import Op

from . import strict

DEVICES = ["cpu", strict.DEVICE.name]
if importlib.util.find_spec("cupy"):
    DEVICES.append(pytest.param("cuda", marks=pytest.mark.gpu))


# Samples


class Sample(NamedTuple):
    """One call of an op: its positional arguments, and its keyword-only ones."""

    args: tuple
    static: dict[str, Any]

    def map(self, change: Callable) -> "Sample":
        """The same call with every array changed, those inside an index included."""
        return Sample(map_arrays(change, self.args), {k: map_arrays(change, v) for k, v in self.static.items()})

    def on(self, device: str) -> "Sample":
        return self.map(lambda x: backend.to_device(x, device))

    def cast(self, dtype: str) -> "Sample":
        return self.map(lambda x: x.astype(dtype) if is_float(x) else x)

    def floats(self) -> list[int]:
        """The positions of the arguments that get a gradient."""
        return [i for i, x in enumerate(self.args) if is_float(x)]


SAMPLES: dict[str, Callable[[np.random.Generator], Iterator[Sample]]] = {}


def call(*args: Any, **static: Any) -> Sample:
    return Sample(tuple(np.asarray(x) if isinstance(x, np.generic) else x for x in args), static)


def samples_of(*ops: str) -> Callable:
    """Enter a generator of samples under the names of these ops; a later one takes the place of an earlier one."""
    def enter(generator: Callable) -> Callable:
        SAMPLES.update(dict.fromkeys(ops, generator))
        return generator
    return enter


def samples(op: str) -> list[Sample]:
    """The samples of an op, the same ones every time."""
    return list(SAMPLES[op](np.random.default_rng(zlib.crc32(op.encode())))) if op in SAMPLES else []


def is_float(x: Any) -> bool:
    return backend.is_array(x) and x.dtype.kind == "f"


def map_arrays(change: Callable, x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(map_arrays(change, item) for item in x)
    return change(x) if backend.is_array(x) else x


# Running an op on arrays


class Run(NamedTuple):
    """What one forward pass made, and the way back."""

    outputs: tuple
    backward: Callable

    def random_dys(self) -> tuple:
        """A random gradient for every output, on its device and in its dtype."""
        rng = np.random.default_rng(0)
        return tuple(backend.to_device(np.asarray(rng.standard_normal(y.shape), y.dtype), backend.device_of(y).name)
                     for y in self.outputs)

    def gradients(self, dys: tuple) -> tuple:
        return as_tuple(self.backward(*dys))


def run(op: Op, sample: Sample) -> Run:
    out, backward = op.vjp(*sample.args, **sample.static)
    return Run(as_tuple(out), backward)


def values_and_gradients(op: Op, sample: Sample, dys: tuple | None = None) -> list:
    """All outputs, then all gradients (of random dys unless given), on the host."""
    forward = run(op, sample)
    return on_host([*forward.outputs, *forward.gradients(forward.random_dys() if dys is None else dys)])


def as_tuple(x: Any) -> tuple:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def on_host(arrays: Any) -> list:
    return [x if x is None else backend.to_host(x) for x in arrays]


def assert_close(ours: list, theirs: list, tolerance: float, what: str = "") -> None:
    """Equal lists of arrays and Nones: the same shapes, and |a - b| ≤ tolerance (1 + |b|)."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        if a is None or b is None:
            assert a is b
        else:
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=what)


def locked(x: Any) -> Any:
    """A copy that refuses writes, where the array library can make one (CuPy cannot)."""
    x = x.copy()
    inner = getattr(x, "_inner", x)                     # a strict array is as read-only as what it holds
    if isinstance(inner, np.ndarray):
        inner.flags.writeable = False
    return x


# Layouts: equal numbers, differently in memory


def transposed(x):
    return x.swapaxes(-1, -2).copy().swapaxes(-1, -2) if x.ndim > 1 else x


def fortran(x):
    return x.T.copy().T


def reversed_(x):
    backwards = (slice(None, None, -1),) * x.ndim
    return x[backwards].copy()[backwards]


def every_second(x):
    return backend.array_module(x).stack([x, x], -1).reshape(*x.shape[:-1], -1)[..., ::2] if x.size and x.ndim else x


def repeated(x):
    """The first row in place of all others, by a stride of 0: other numbers, for once."""
    return backend.array_module(x).broadcast_to(x[:1], x.shape) if x.ndim else x


LAYOUTS = (transposed, fortran, reversed_, every_second, repeated)


# Faults


def planted(op: Op, argument: int, fault: Callable) -> Op:
    """`op` with a fault in its backward: the gradient of one argument goes through `fault`."""
    @functools.wraps(op.vjp)
    def vjp(*args, **static):
        out, backward = op.vjp(*args, **static)

        def faulty(*dys):
            dxs = list(as_tuple(backward(*dys)))
            dxs[argument] = fault(dxs[argument])
            return tuple(dxs)

        return out, faulty

    return Op(vjp, op.shapes, None)
