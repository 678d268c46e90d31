"""Operators and methods of Tensor: `x @ W + b` calls the ops. Nothing is computed here but comparisons.

`==` is not among them: it asks whether two Tensors are the same object, so that they can be keys of a dictionary.
"""

import operator

from ..backend import as_array
from ..op import shown
from ..tensor import Tensor
from . import activations, basic, extremes, indexing, powers, reductions, shaping, softmax


def _index(index):
    """Tensors inside an index as the arrays that they hold."""
    if isinstance(index, tuple):
        return tuple(i.array if isinstance(i, Tensor) else i for i in index)
    return index.array if isinstance(index, Tensor) else index


def _lengths(lengths):
    """reshape(2, 3) and reshape((2, 3)) are the same."""
    return lengths[0] if len(lengths) == 1 and isinstance(lengths[0], tuple) else lengths


def _comparison(compare):
    """Of the numbers in x and y: a Tensor of booleans, which is never tracked."""
    def compared(x, y):
        y = y.array if isinstance(y, Tensor) else y
        try:
            return Tensor(as_array(compare(x.array, y)))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{compare.__name__}: cannot compare a Tensor {x.shape} {x.dtype} on {x.device} with {shown(y)}; "
                       f"give numbers, or a Tensor on the same device whose shape broadcasts") from None
    return compared


OPERATORS = {
    "__add__": lambda x, y: basic.add(x, y),
    "__radd__": lambda x, y: basic.add(y, x),
    "__sub__": lambda x, y: basic.sub(x, y),
    "__rsub__": lambda x, y: basic.sub(y, x),
    "__mul__": lambda x, y: basic.mul(x, y),
    "__rmul__": lambda x, y: basic.mul(y, x),
    "__truediv__": lambda x, y: basic.div(x, y),
    "__rtruediv__": lambda x, y: basic.div(y, x),
    "__matmul__": lambda x, y: basic.matmul(x, y),
    "__rmatmul__": lambda x, y: basic.matmul(y, x),
    "__pow__": lambda x, y: powers.power(x, y),
    "__rpow__": lambda x, y: powers.power(y, x),
    "__neg__": lambda x: basic.neg(x),
    "__abs__": lambda x: powers.abs(x),
    "__lt__": _comparison(operator.lt),
    "__le__": _comparison(operator.le),
    "__gt__": _comparison(operator.gt),
    "__ge__": _comparison(operator.ge),
    "__getitem__": lambda x, index: indexing.getitem(x, index=_index(index)),
    "__iter__": lambda x: iter(shaping.unstack(x) if len(x) else ()),
    "sum": lambda x, axis=None, keepdims=False: basic.sum(x, axis=axis, keepdims=keepdims),
    "mean": lambda x, axis=None, keepdims=False: basic.mean(x, axis=axis, keepdims=keepdims),
    "max": lambda x, axis=None, keepdims=False: extremes.max(x, axis=axis, keepdims=keepdims),
    "min": lambda x, axis=None, keepdims=False: extremes.min(x, axis=axis, keepdims=keepdims),
    "prod": lambda x, axis=None, keepdims=False: reductions.prod(x, axis=axis, keepdims=keepdims),
    "norm": lambda x, axis=None, keepdims=False: reductions.norm(x, axis=axis, keepdims=keepdims),
    "logsumexp": lambda x, axis=None, keepdims=False: reductions.logsumexp(x, axis=axis, keepdims=keepdims),
    "var": lambda x, axis=None, ddof=0, keepdims=False: reductions.var(x, axis=axis, ddof=ddof, keepdims=keepdims),
    "cumsum": lambda x, axis=None: reductions.cumsum(x, axis=axis),
    "exp": lambda x: powers.exp(x),
    "log": lambda x: powers.log(x),
    "sqrt": lambda x: powers.sqrt(x),
    "abs": lambda x: powers.abs(x),
    "clip": lambda x, low=None, high=None: extremes.clip(x, low=low, high=high),
    "tanh": lambda x: activations.tanh(x),
    "sigmoid": lambda x: activations.sigmoid(x),
    "relu": lambda x: activations.relu(x),
    "softmax": lambda x, axis=-1: softmax.softmax(x, axis=axis),
    "log_softmax": lambda x, axis=-1: softmax.log_softmax(x, axis=axis),
    "reshape": lambda x, *shape: shaping.reshape(x, shape=_lengths(shape)),
    "transpose": lambda x, *axes: shaping.transpose(x, axes=_lengths(axes) or None),
    "T": property(lambda x: shaping.transpose(x)),
}

for _name, _method in OPERATORS.items():
    if callable(_method):       # Python's errors about arguments name it
        _method.__name__, _method.__qualname__ = _name, f"Tensor.{_name}"
    setattr(Tensor, _name, _method)
