"""minitx: sequence models you can read, in NumPy and CuPy, with every backward pass written by hand.

    import minitx as mx

Read the source in this order: `backend`, `tensor`, `tape`, `op`, `ops/softmax`, `ops/recurrent`, `ops/attention`, `nn`.
"""

from . import models, nn, ops, optim
from .backend import seed
from .gradcheck import GradcheckError, gradcheck
from .observer import Observer, observe
from .op import OPS, op
from .profiling import profile
from .recording import Recorder, record
from .saved import saved
from .tape import gradients
from .tensor import Tensor, no_grad, tensor, zeros

__version__ = "0.1.0"
__all__ = [
    "OPS", "GradcheckError", "Observer", "Recorder", "Tensor", "gradcheck", "gradients", "models", "nn", "no_grad", "observe",
    "op", "ops", "optim", "profile", "record", "saved", "seed", "tensor", "zeros",
]
