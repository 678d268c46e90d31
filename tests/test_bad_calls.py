"""Bad calls of ops: one thing is spoiled in a call that was fine. It is refused in one sentence, or the numbers are right.

Hypothesis chooses the op, the sample and what to spoil, the same ones in every run. What is not refused must agree with the
naive loops of `oracles.py`: a silent NaN, another dtype or a wrapped id would not.

Read next: `test_bad_arguments.py`, modules, optimisers and all the rest.
"""

import re
from collections import Counter
from math import inf, nan

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minitx as mx
from minitx import backend

from . import oracles_numpy, samples  # noqa: F401  (they enter the tables)
from .common import said
from .harness import Sample, as_tuple, is_float
from .harness import samples as samples_of
from .oracles import ORACLES

REFUSALS = (TypeError, ValueError, IndexError)

# What an argument, an option and a dtype are spoiled with

THINGS = [None, "text", [1.0, 2.0], (1, 2), {"x": 1.0}, range(3), 1j, object(), 2, True, np.ones(2, complex),
          np.array([None, 1]), np.array(["a"]), np.ones(2, "datetime64[s]")]
OPTIONS = [None, "x", "", [], {}, (), (0, 0), (0, 99), (1, -1), 99, -99, -1, 0, 1, 2, 1.5, -0.5, nan, inf, 1j, True,
           object(), ["x"], ((0,), 1), mx.tensor([0, 0])]
DTYPES = ["bool", "int8", "int64", "uint8", "float16", "float32", "complex128", "object"]


def spoil_rank(x, draw):
    return x[None] if draw(st.booleans()) or not x.ndim or not len(x) else x[0]


def spoil_length(x, draw):
    """One axis longer by one."""
    if 0 in (*x.shape, x.ndim):
        return np.ones((2,) * x.ndim or 2, x.dtype)
    axis = draw(st.integers(0, x.ndim - 1))
    return np.concatenate([x, x.take([0], axis)], axis)


def spoil_dtype(x, draw):
    with np.errstate(invalid="ignore"):                                      # -inf as an integer
        return x.astype(draw(st.sampled_from(DTYPES)))


def spoil_ids(x, draw):
    return x.astype("int64") + draw(st.sampled_from([-1, -100, 100])) if x.dtype.kind in "iu" else spoil_dtype(x, draw)


@st.composite
def spoiled(draw):
    """(op, sample, device, which argument lives elsewhere): a good call with one thing spoiled."""
    op, device, elsewhere = mx.OPS[draw(st.sampled_from(sorted(mx.OPS)))], draw(st.sampled_from(["cpu", "strict"])), None
    args, static = draw(st.sampled_from(samples_of(op.name)))
    args, i = list(args), draw(st.integers(0, len(args) - 1))
    options = sorted(op.static - {"watch"})
    how = draw(st.sampled_from(["array", "array", "thing", "option", "option", "keyword", "few", "many", "device"]))
    if how == "array" and backend.is_array(args[i]):
        args[i] = draw(st.sampled_from([spoil_rank, spoil_length, spoil_dtype, spoil_ids]))(args[i], draw)
    elif how == "option" and options:
        static = {**static, draw(st.sampled_from(options)): draw(st.sampled_from(OPTIONS))}
    elif how == "keyword":
        static = {**static, draw(st.sampled_from(["dim", "keepdim", "out", *op.arrays[:1]])): 0}
    elif how == "few":
        del args[i]
    elif how == "many":
        args.append(draw(st.sampled_from([None, 2.0, np.ones((2, 3))])))
    elif how == "device":
        elsewhere = i
    else:
        args[i] = draw(st.sampled_from(THINGS))
    return op, Sample(tuple(args), static), device, elsewhere


def outcome(op, sample, device, elsewhere):
    """What became of a call: "refused", or the verdict on its numbers."""
    devices = [{"cpu": "strict", "strict": "cpu"}[device] if i == elsewhere else device for i in range(len(sample.args))]
    args = [mx.tensor(x, device=where, requires_grad=is_float(x)) if backend.is_array(x) and x.dtype.kind in "fiub" else x
            for x, where in zip(sample.args, devices)]
    try:
        outputs = as_tuple(op(*args, **sample.on(device).static))
    except Exception as error:
        said(error, re.escape(op.name))
        return "refused"
    if outputs[0].requires_grad:
        mx.gradients(outputs[0].sum())
    return verdict(op, sample, outputs)


def verdict(op, sample, outputs):
    """Of a call that was not refused: the values of the oracle, in the one float dtype that went in."""
    dtypes = {x.dtype for x in sample.args if is_float(x)}
    assert not dtypes or {y.dtype for y in outputs} <= dtypes
    try:
        expected = as_tuple(ORACLES[op.name](*sample.cast("float64").args, **sample.static))
    except ArithmeticError:                                                  # 1 / 0 is infinite in arrays
        return "beyond the oracle"
    except (AttributeError, *REFUSALS):                                      # NumPy takes what the oracle does not, axis=() say
        assert op.name == "power" or all(np.isfinite(y.numpy()).all() for y in outputs)      # √-1 is NaN, as NumPy has it
        return "beyond the oracle"
    assert len(outputs) == len(expected)
    for y, right in zip(outputs, expected):
        assert y.shape == right.shape
        tolerance = {"float16": 0.03, "float32": 1e-4}.get(str(y.dtype), 1e-9)
        fits = {"float16": ~(abs(right) > 6e4), "uint8": (right >= 0) & (right < 256), "int8": abs(right) < 128}
        fits = fits.get(str(y.dtype), np.ones(right.shape, bool))            # narrow numbers overflow, as NumPy's do
        np.testing.assert_allclose(y.numpy()[fits].astype("float64"), right[fits], rtol=tolerance, atol=tolerance)
    return "right"


def test_an_op_refuses_a_bad_call_or_gives_the_right_numbers(record_property):
    tally = Counter()

    @settings(max_examples=2000, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(spoiled())
    def attempt(call):
        with np.errstate(all="ignore"):
            tally.update(["tried", outcome(*call)])

    attempt()
    record_property("bad calls", dict(tally))
    assert tally["refused"] > 1000
