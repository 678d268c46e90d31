"""Modules: parameters with names, initial values, composition. No mathematics: a `forward` only calls ops."""

from .cache import Cache
from .layers import Dropout, Embedding, LayerNorm, Linear, RMSNorm
from .module import Module
from .recurrent import GRU, LSTM, RNN, Symbols
from .transformer import FeedForward, MultiHeadAttention, TransformerBlock

__all__ = ["GRU", "LSTM", "RNN", "Cache", "Dropout", "Embedding", "FeedForward", "LayerNorm", "Linear", "Module",
           "MultiHeadAttention", "RMSNorm", "Symbols", "TransformerBlock"]
