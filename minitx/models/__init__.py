"""Ready models. Read `language.py` first (what a language model is, and the recurrent one), then `transformer.py`, `encoder.py`
and `encoder_decoder.py`: the three architectures made of Transformer blocks."""

from .encoder import Encoder, MaskedLM
from .encoder_decoder import EncoderDecoder
from .language import CELLS, HEAD_GAIN, LanguageModel, Model, RecurrentLM
from .transformer import TransformerLM

__all__ = ["CELLS", "HEAD_GAIN", "Encoder", "EncoderDecoder", "LanguageModel", "MaskedLM", "Model", "RecurrentLM",
           "TransformerLM"]
