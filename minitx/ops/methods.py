"""Operators and methods of Tensor: `x @ W + b` calls the ops. Nothing is computed here."""

from ..tensor import Tensor
from . import basic, shaping


def _index(index):
    """Tensors inside an index as the arrays that they hold."""
    if isinstance(index, tuple):
        return tuple(i.array if isinstance(i, Tensor) else i for i in index)
    return index.array if isinstance(index, Tensor) else index


def _lengths(lengths):
    """reshape(2, 3) and reshape((2, 3)) are the same."""
    return lengths[0] if len(lengths) == 1 and isinstance(lengths[0], tuple) else lengths


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
    "__neg__": lambda x: basic.neg(x),
    "__getitem__": lambda x, index: shaping.getitem(x, index=_index(index)),
    "sum": lambda x, axis=None, keepdims=False: basic.sum(x, axis=axis, keepdims=keepdims),
    "mean": lambda x, axis=None, keepdims=False: basic.mean(x, axis=axis, keepdims=keepdims),
    "exp": lambda x: basic.exp(x),
    "reshape": lambda x, *shape: shaping.reshape(x, shape=_lengths(shape)),
    "transpose": lambda x, *axes: shaping.transpose(x, axes=_lengths(axes) or None),
    "T": property(lambda x: shaping.transpose(x)),
}

for _name, _method in OPERATORS.items():
    setattr(Tensor, _name, _method)
