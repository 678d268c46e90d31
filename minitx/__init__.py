"""minitx: sequence models you can read, in NumPy and CuPy, with every backward pass written by hand.

    import minitx as mx

Read the source in this order: `backend`, `tensor`, `tape`, `op`, `ops/softmax`, `ops/recurrent`, `ops/attention`, `nn`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import nn, ops, optim
from .gradcheck import GradcheckError, gradcheck
from .observer import Observer, observe
from .op import OPS, op
from .randomness import seed
from .saved import saved
from .tape import gradients
from .tensor import Tensor, no_grad, tensor, zeros

if TYPE_CHECKING:
    from . import data as data
    from . import models
    from .profiling import profile
    from .recording import Recorder, record

__version__ = "0.1.0"
__all__ = [
    "OPS", "GradcheckError", "Observer", "Recorder", "Tensor", "gradcheck", "gradients", "models", "nn", "no_grad", "observe",
    "op", "ops", "optim", "profile", "record", "saved", "seed", "tensor", "zeros",
]

# What not every program needs: loaded when first asked for, so that `import minitx` takes hardly longer than NumPy.
_LATER = {"data": "data", "models": "models", "profile": "profiling", "record": "recording", "Recorder": "recording"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_LATER[name]}", __name__)
    return module if name == _LATER[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
