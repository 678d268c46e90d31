"""The gradient-check contract: what every op of minitx is held to, over every sample, on every device. No exceptions.

The numbers of the points are those of `docs/gradient_checks.md`; the last, the checker itself, has `test_gradcheck.py`.
A new op needs samples (`samples.py`), an oracle (`oracles.py`) and a row in `saved_bytes.json`.
"""

import functools
import importlib
import inspect
import json
import pkgutil

import numpy as np
import pytest

import minitx as mx
from minitx import backend
from minitx.contract import match

from . import oracles_numpy as _oracles  # noqa: F401  (enters more oracles)
from . import samples as _samples  # noqa: F401  (enters the samples)
from .harness import (
    DEVICES,
    LAYOUTS,
    SAMPLES,
    as_tuple,
    assert_close,
    is_float,
    locked,
    on_host,
    planted,
    run,
    samples,
    values_and_gradients,
)
from .oracles import ORACLES
from .saved_bytes import TABLE, measured

for module in pkgutil.walk_packages(mx.__path__, "minitx."):
    importlib.import_module(module.name)


def every_sample_of(ops):
    return pytest.mark.parametrize("op, sample", [pytest.param(op, sample, id=f"{op.name}-{k}")
                                                  for op in ops for k, sample in enumerate(samples(op.name))])


every_op = pytest.mark.parametrize("op", mx.OPS.values(), ids=mx.OPS)
every_sample = every_sample_of(mx.OPS.values())
every_device = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture
def tally(request, record_property):
    """Note numbers for the line at the end of the run."""
    op, device = request.getfixturevalue("op").name, request.getfixturevalue("device")
    case = {"op": op, "device": device, "sample": request.node.callspec.id.removesuffix(f"-{device}")}
    return lambda **numbers: record_property("contract", {**case, **numbers})


# 1, 2  Samples and oracles for everything


def test_every_op_has_samples_and_an_oracle():
    assert set(mx.OPS) == set(SAMPLES) == set(ORACLES)


@every_op
def test_samples_vary_every_keyword(op):
    for keyword in op.static - {"watch"}:                                    # watching has tests of its own
        default = inspect.signature(op.vjp).parameters[keyword].default
        assert len({repr(sample.static.get(keyword, default)) for sample in samples(op.name)}) > 1, keyword


@every_op
def test_samples_come_in_all_sizes(op):
    shapes = [x.shape for sample in samples(op.name) for x in sample.args if backend.is_array(x)]
    assert any(0 in shape for shape in shapes) and any(1 in shape for shape in shapes)
    assert any(n % 2 and n > 1 for shape in shapes for n in shape)
    if "..." in op.shapes.line or not op.shapes.inputs:                      # of any rank
        assert {1, 2, 3, 4} <= {len(shape) for shape in shapes}


# 3, 4  Gradients, and the power to find wrong ones


@every_device
@every_sample
def test_backward_agrees_with_nudges(op, sample, device, tally):
    sample, outputs = sample.on(device), len(run(op, sample).outputs)
    for fn in [op, *(alone(op, k) for k in range(outputs) if outputs > 1)]:
        for report in mx.gradcheck(fn, *sample.args, **sample.static).inputs:
            tally(compared=report.compared, relative=report.relative)


def alone(op, k):
    """Output k as a function of its own: the gradients of all other outputs are zero."""
    @functools.wraps(op.vjp)
    def output(*args, **static):
        return op(*args, **static)[k]
    return output


@every_device
@every_sample
def test_any_gradient_that_is_slightly_off_is_found(op, sample, device, tally):
    sample, rng = sample.on(device), np.random.default_rng(0)

    def off(dx):
        """By 1e-3 of every element, up or down; by 1e-3 where it is zero."""
        size = abs(backend.to_host(dx))
        return dx + backend.to_device(1e-3 * np.where(size < 1e-9, 1, size) * rng.choice([-1, 1], size.shape), device)

    for i in sample.floats():
        if sample.args[i].size:
            found = finds(planted(op, i, off), sample)
            tally(planted=1, caught=int(found))
            assert found, f"an error in the gradient of {op.names(i + 1)[i]} passed"


@every_device
@every_op
def test_every_input_has_a_gradient_whose_factor_matters(op, device, tally):
    every = {name for sample in samples(op.name) for name in names_of_floats(op, sample)}
    clear = set()
    for sample in samples(op.name):
        sample = sample.on(device)
        forward = run(op, sample)
        gradients = forward.gradients(forward.random_dys())
        for i, name in zip(sample.floats(), names_of_floats(op, sample)):
            if name not in clear and abs(backend.to_host(gradients[i])).max(initial=0) > 1e-2:
                assert finds(planted(op, i, lambda dx: 1.001 * dx), sample), f"a factor of 1.001 for {name} passed"
                tally(planted=1, caught=1)
                clear.add(name)
    assert clear == every


def names_of_floats(op, sample):
    return [op.names(len(sample.args))[i] for i in sample.floats()]


def finds(op, sample):
    """Whether gradcheck raises."""
    try:
        mx.gradcheck(op, *sample.args, **sample.static)
    except mx.GradcheckError:
        return True
    return False


def test_at_its_kink_relu_is_flat():
    """No nudge can tell: by convention the slope at 0 is 0, for the op and for the cells that use it."""
    zero = np.zeros((1, 1))
    assert mx.ops.relu.vjp(np.array([0.0, -0.0]))[1](np.ones(2)).tolist() == [0, 0]
    assert mx.ops.rnn_cell.vjp(*[zero] * 4, zero[0], activation="relu")[1](zero + 1)[-1] == 0


# 5, 6  Shapes, dtypes, and hands off


@every_device
@every_sample
def test_shapes_and_dtypes_go_through(op, sample, device):
    for dtype, tolerance in ("float64", 1e-12), ("float32", 1e-4), ("float16", 5e-2):
        narrow = sample.cast(dtype)
        forward = run(op, narrow.on(device))
        dys = forward.random_dys()
        dxs = forward.gradients(dys)
        assert all(y.dtype == dtype for y in forward.outputs)
        assert all(dx is None for dx in dxs[len(sample.args):])              # of optional arguments that were left out
        for x, dx in zip(narrow.args, dxs):
            assert (dx.shape, dx.dtype) == (x.shape, dtype) if is_float(x) else dx is None
        exact = values_and_gradients(op, narrow.cast("float64"), tuple(dy.astype("float64") for dy in on_host(dys)))
        assert_close(on_host([*forward.outputs, *dxs]), exact, tolerance, dtype)


@every_sample
def test_outputs_have_the_shapes_of_the_shape_line(op, sample):
    letters = {}
    for spec, x in zip(op.shapes.inputs, sample.args):
        assert x is None or spec.many or match(spec, x.shape, letters) is None
    for spec, y in zip(op.shapes.outputs, run(op, sample).outputs):
        assert not spec.axes or match(spec, y.shape, letters) is None


@every_device
@every_sample
def test_arrays_are_left_alone_and_backward_can_be_called_twice(op, sample, device):
    sample = sample.on(device).map(locked)
    forward = run(op, sample)
    dys = tuple(locked(dy) for dy in forward.random_dys())

    def look():
        arrays = [x for x in (*sample.args, *forward.outputs, *dys) if backend.is_array(x)]
        return [x.tobytes() for x in on_host(arrays)]

    before = look()
    once, twice = on_host(forward.gradients(dys)), on_host(forward.gradients(dys))
    assert look() == before
    assert_close(once, twice, 0)


# 7  Memory


@every_op
def test_what_is_kept_stands_in_the_table(op):
    table = json.loads(TABLE.read_text())
    assert measured(op.name) == table.get(op.name), "if this is meant: python -m tests.saved_bytes"


# 8, 9, 10, 11  One mathematics: fast and readable, oracle, devices, layouts


@every_device
@every_sample_of(op for op in mx.OPS.values() if op.reference)
def test_the_fast_form_equals_the_readable_one(op, sample, device):
    sample = sample.on(device)
    known = sample._replace(static={name: value for name, value in sample.static.items() if name in op.reference.static})
    ours, theirs = values_and_gradients(op, sample), values_and_gradients(op.reference, known)
    assert_close(ours, theirs[:len(ours)], 1e-12)
    assert theirs[len(ours):] == [None] * (len(theirs) - len(ours))          # of arguments that the readable one has besides


@every_device
@every_sample
def test_values_equal_those_of_the_oracle(op, sample, device):
    expected = as_tuple(ORACLES[op.name](*sample.args, **sample.static))
    assert_close(on_host(run(op, sample.on(device)).outputs), on_host(expected), 1e-12)


@pytest.mark.parametrize("device", DEVICES[1:])
@every_sample
def test_devices_agree(op, sample, device):
    tolerance = 1e-11 if device == "cuda" else 1e-13                         # a GPU sums in another order
    assert_close(values_and_gradients(op, sample.on(device)), values_and_gradients(op, sample), tolerance)


@every_device
@every_sample
def test_the_layout_in_memory_does_not_matter(op, sample, device):
    for layout in LAYOUTS:
        laid = sample.on(device).map(layout)
        dys = tuple(layout(dy) for dy in run(op, laid).random_dys())
        plain, plain_dys = laid.map(lambda x: x.copy()), tuple(dy.copy() for dy in dys)
        ours, theirs = values_and_gradients(op, laid, dys), values_and_gradients(op, plain, plain_dys)
        assert_close(ours, theirs, 1e-12, layout.__name__)
