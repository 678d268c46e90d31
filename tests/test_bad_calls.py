"""Bad calls: one thing is spoiled in a call that was fine. It is refused in one sentence, or the numbers are still right.

Hypothesis chooses the op, the sample and what to spoil, the same ones in every run. Whoever broadens an op meets its oracle here:
what is not refused must agree with the naive loops of `oracles.py`. The rest of minitx follows as a table, argument by argument.
"""

import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minitx as mx
from minitx import backend

from . import oracles_numpy, samples as _samples  # noqa: F401  (they enter the tables)
from .harness import Sample, as_tuple, is_float, on_host, samples
from .oracles import ORACLES


REFUSALS = (TypeError, ValueError, IndexError)


def said(error, *callers):
    """One sentence, in front of it who says it."""
    message = str(error)
    assert isinstance(error, REFUSALS), f"{type(error).__name__}: {message}"
    assert any(message.startswith(f"{caller}: ") for caller in callers), message
    assert "\n" not in message and len(message) < 400, message


# Ops: what is spoiled

THINGS = [None, "text", [1.0, 2.0], (1, 2), {"x": 1.0}, range(3), 1j, object(), math.nan, 2, True, np.ones(2, complex),
          np.array([None, 1]), np.array(["a"]), np.ones(2, "datetime64[s]")]
OPTIONS = [None, "x", "", [], {}, (), (0, 0), (0, 99), (1, -1), 99, -99, -1, 0, 1, 2, 10**400, 1.5, -0.5, math.nan, math.inf, 1j, True,
           object(), ["x"], ((0,), 1), mx.tensor([0, 0])]
DTYPES = ["bool", "int8", "int64", "uint8", "float16", "float32", "complex128", "object"]


def spoil_rank(x, draw):
    return x[None] if draw(st.booleans()) or not x.ndim or not len(x) else x[0]


def spoil_length(x, draw):
    if not x.ndim:
        return np.stack([x, x])
    axis = draw(st.integers(0, x.ndim - 1))
    return np.concatenate([x, x[(slice(None),) * axis + (slice(0, 1),)]], axis) if x.shape[axis] else np.ones_like(x, shape=(1,) * x.ndim)


def spoil_dtype(x, draw):
    return x.astype(draw(st.sampled_from(DTYPES)))


def spoil_ids(x, draw):
    return x + draw(st.sampled_from([-1, -100, 100, 10**6])) if x.dtype == "int64" else x * math.nan


ARRAYS = [spoil_rank, spoil_length, spoil_dtype, spoil_ids]


@st.composite
def spoiled(draw):
    """(op, device, sample, how): a good sample with one thing spoiled."""
    op = mx.OPS[draw(st.sampled_from(sorted(mx.OPS)))]
    args, static = draw(st.sampled_from(samples(op.name)))
    args, device = list(args), draw(st.sampled_from(["cpu", "strict"]))
    how = draw(st.sampled_from(["array", "array", "thing", "option", "option", "keyword", "few", "many", "device"]))
    i = draw(st.integers(0, len(args) - 1))
    known = sorted(op.static - {"watch"})
    if how == "array" and backend.is_array(args[i]):
        args[i] = draw(st.sampled_from(ARRAYS))(args[i], draw)
    elif how == "option" and known:
        static = {**static, draw(st.sampled_from(known)): draw(st.sampled_from(OPTIONS))}
    elif how == "keyword":
        static = {**static, draw(st.sampled_from(["dim", "keepdim", "out", *op.arrays[:1]])): 0}
    elif how == "few":
        del args[i]
    elif how == "many":
        args.append(draw(st.sampled_from([None, 2.0, np.ones((2, 3))])))
    elif how != "device":
        args[i], how = draw(st.sampled_from(THINGS)), "thing"
    return op, device, Sample(tuple(args), static), (how, i)


def tensors(sample, device, elsewhere):
    """The arguments on a device, but one on the other; floats are tracked."""
    other = {"cpu": "strict", "strict": "cpu"}[device]
    for i, x in enumerate(sample.args):
        if backend.is_array(x) and x.dtype.kind in "fiub":
            x = mx.tensor(x, device=other if i == elsewhere else device, requires_grad=x.dtype.kind == "f")
        yield x


def check_numbers(op, sample, outputs):
    """Of a call that was not refused: values of the oracle, in the one float dtype that went in."""
    dtypes = {x.dtype for x in sample.args if is_float(x)}
    precise = sample.cast("float64").map(lambda x: x.astype("int64") if x.dtype.kind == "b" and op.name not in ("where", "dropout") else x)
    expected = as_tuple(ORACLES[op.name](*precise.args, **precise.static))
    assert len(outputs) == len(expected)
    for y, right in zip(outputs, expected):
        assert y.shape == right.shape
        assert not dtypes or {y.dtype} == dtypes
        tolerance = {"float16": 0.03, "float32": 1e-4}.get(str(y.dtype), 1e-9)
        fits = ~(abs(right) > 6e4) if y.dtype in ("float16", "int8", "uint8") else np.ones(right.shape, bool)
        np.testing.assert_allclose(on_host([y.array])[0][fits].astype("float64"), right[fits], rtol=tolerance, atol=tolerance)


def test_an_op_refuses_a_bad_call_or_gives_the_right_numbers(record_property):
    tally = Counter()

    @settings(max_examples=600, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(spoiled())
    def attempt(call):
        op, device, sample, (how, i) = call
        args = list(tensors(sample, device, i if how == "device" else None))
        static = {k: v if k != "index" else Sample((v,), {}).on(device).args[0] for k, v in sample.static.items()}
        tally["tried"] += 1
        with np.errstate(all="ignore"):
            try:
                outputs = as_tuple(op(*args, **static))
            except Exception as error:
                said(error, op.name)
                tally["refused"] += 1
                return
            check_numbers(op, sample, outputs)
            for y in outputs:
                if y.requires_grad:
                    mx.gradients(y.sum())
                    break

    attempt()
    record_property("bad calls", dict(tally))
    assert tally["refused"] > 200
