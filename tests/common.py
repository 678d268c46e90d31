"""What the tests of engine, modules, optimisers and training have in common."""

import re

import pytest
from threadpoolctl import threadpool_info

import minitx as mx

from .harness import DEVICES

every_device = pytest.mark.parametrize("device", DEVICES)


def leaf(data, dtype="float64", device="cpu"):
    """A tracked Tensor with numbers of its own."""
    return mx.tensor(data, dtype=dtype, device=device, requires_grad=True)


def refused(kind, call, *parts):
    """The message of the error that `call` raises: of this kind, one line, with all `parts` in it."""
    with pytest.raises(kind) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    assert [part for part in parts if part not in message] == [], message
    return message


def said(error, caller):
    """Whether this is a refusal of one sentence, with the caller (a regular expression) in front."""
    message = str(error)
    assert isinstance(error, (TypeError, ValueError, IndexError)), f"{type(error).__name__}: {message}"
    assert re.match(rf"{caller}(: |\(\) got an unexpected keyword)", message), message
    assert "\n" not in message and len(message) < 400, message


def same(a, b):
    """Whether two dictionaries of arrays are equal to the last bit, NaN too."""
    return set(a) == set(b) and all(x.dtype == b[n].dtype and x.shape == b[n].shape and x.tobytes() == b[n].tobytes()
                                    for n, x in a.items())


def blas_threads():
    """How many threads BLAS takes for a product."""
    [count] = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
    return count
