"""All mathematics of minitx: every op with its backward, by hand.

Read in this order: softmax, linear, basic, shaping, activations, norm, embedding, dropout, recurrent, sequences, attention.
"""

from . import methods  # gives Tensor its operators
from .activations import gelu, relu, sigmoid, tanh
from .attention import attention
from .basic import add, div, exp, matmul, mean, mul, neg, sub, sum
from .dropout import dropout
from .embedding import embedding
from .linear import linear
from .norm import layer_norm
from .recurrent import lstm_cell, rnn_cell, unroll
from .sequences import lstm, rnn
from .shaping import concatenate, getitem, reshape, split, stack, transpose, unstack
from .softmax import cross_entropy, log_softmax, softmax

__all__ = [
    "add", "attention", "concatenate", "cross_entropy", "div", "dropout", "embedding", "exp", "gelu", "getitem", "layer_norm",
    "linear", "log_softmax", "lstm", "lstm_cell", "matmul", "mean", "methods", "mul", "neg", "relu", "reshape", "rnn",
    "rnn_cell", "sigmoid", "softmax", "split", "stack", "sub", "sum", "tanh", "transpose", "unroll", "unstack",
]
