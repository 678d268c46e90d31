"""Modules: parameters with names, initial values, composition. No mathematics: a `forward` only calls ops."""

from .layers import Dropout, Embedding, LayerNorm, Linear, RMSNorm
from .module import Module
from .recurrent import GRU, LSTM, RNN
from .transformer import MultiHeadAttention, TransformerBlock

__all__ = ["GRU", "LSTM", "RNN", "Dropout", "Embedding", "LayerNorm", "Linear", "Module", "MultiHeadAttention", "RMSNorm",
           "TransformerBlock"]
