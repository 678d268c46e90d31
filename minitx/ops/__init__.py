"""All mathematics of minitx: every op with its backward, by hand.

Read in this order: softmax, linear, norm, recurrent, unroll, sequence_of, steps, sequences, heads, textbook, attention,
flash, positions. The rest when you need it: basic, powers, extremes, reductions, shaping, indexing, lengths, activations,
embedding, dropout, losses.
"""

from . import methods  # gives Tensor its operators
from .activations import gelu, relu, sigmoid, silu, softplus, tanh
from .additive import additive_attention
from .attention import attention
from .basic import add, div, matmul, mean, mul, neg, sub, sum
from .dropout import dropout
from .embedding import embedding
from .extremes import clip, max, maximum, min, minimum, where
from .flash import flash_attention
from .heads import merge_heads, split_heads
from .indexing import gather, getitem, take
from .lengths import reverse
from .linear import linear
from .losses import binary_cross_entropy, kl_divergence, mse
from .norm import layer_norm, rms_norm
from .positions import rotary
from .powers import abs, exp, log, power, sqrt
from .recurrent import gru_cell, lstm_cell, rnn_cell
from .reductions import cumsum, logsumexp, norm, prod, var
from .sequences import gru, lstm, rnn
from .shaping import concatenate, pad, reshape, split, stack, transpose, unstack
from .softmax import cross_entropy, log_softmax, softmax
from .steps import gru_steps, lstm_steps, rnn_steps
from .textbook import textbook_attention
from .unroll import unroll

__all__ = [
    "abs", "add", "additive_attention", "attention", "binary_cross_entropy", "clip", "concatenate", "cross_entropy",
    "cumsum", "div", "dropout", "embedding", "exp", "flash_attention", "gather", "gelu", "getitem", "gru", "gru_cell",
    "gru_steps", "kl_divergence", "layer_norm", "linear", "log", "log_softmax", "logsumexp", "lstm", "lstm_cell",
    "lstm_steps", "matmul", "max", "maximum", "mean", "merge_heads", "methods", "min", "minimum", "mse", "mul", "neg",
    "norm", "pad", "power", "prod", "relu", "reshape", "reverse", "rms_norm", "rnn", "rnn_cell", "rnn_steps", "rotary",
    "sigmoid", "silu", "softmax", "softplus", "split", "split_heads", "sqrt", "stack", "sub", "sum", "take", "tanh",
    "textbook_attention", "transpose", "unroll", "unstack", "var", "where",
]
