"""All mathematics of minitx: every op with its backward, by hand.

Read in this order: softmax, linear, norm, recurrent, sequences, attention. The rest when you need it: basic, powers, extremes,
reductions, shaping, indexing, activations, embedding, dropout, losses.
"""

from . import methods  # gives Tensor its operators
from .activations import gelu, relu, sigmoid, silu, softplus, tanh
from .attention import attention
from .basic import add, div, matmul, mean, mul, neg, sub, sum
from .dropout import dropout
from .embedding import embedding
from .extremes import clip, max, maximum, min, minimum, where
from .indexing import gather, getitem, take
from .linear import linear
from .losses import binary_cross_entropy, kl_divergence, mse
from .norm import layer_norm, rms_norm
from .powers import abs, exp, log, power, sqrt
from .recurrent import lstm_cell, rnn_cell, unroll
from .reductions import cumsum, logsumexp, norm, prod, var
from .sequences import lstm, rnn
from .shaping import concatenate, pad, reshape, split, stack, transpose, unstack
from .softmax import cross_entropy, log_softmax, softmax

__all__ = [
    "abs", "add", "attention", "binary_cross_entropy", "clip", "concatenate", "cross_entropy", "cumsum", "div", "dropout",
    "embedding", "exp", "gather", "gelu", "getitem", "kl_divergence", "layer_norm", "linear", "log", "log_softmax", "logsumexp",
    "lstm", "lstm_cell", "matmul", "max", "maximum", "mean", "methods", "min", "minimum", "mse", "mul", "neg", "norm", "pad",
    "power", "prod", "relu", "reshape", "rms_norm", "rnn", "rnn_cell", "sigmoid", "silu", "softmax", "softplus", "split",
    "sqrt", "stack", "sub", "sum", "take", "tanh", "transpose", "unroll", "unstack", "var", "where",
]
