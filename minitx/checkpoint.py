"""Save a run so that it goes on later, bit for bit, as if it had never stopped.

A checkpoint is one safetensors file: arrays by name, and a JSON text with everything else. It is data and nothing but data;
reading one executes nothing. It is written beside its place and then moved there in one step of the file system, so that a
kill at any moment leaves either the old file or the new one, whole.

Read next: `examples/train_language_model.py`, which saves and resumes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as as_bytes
from threadpoolctl import threadpool_info

from . import backend
from .nn import Module
from .optim import Optimizer

FORMAT = "minitx run 1"


def save_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Write arrays by name, and `about` (anything that JSON can hold), to `path`, which never holds half a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = as_bytes({n: np.ascontiguousarray(a) for n, a in arrays.items()},
                       {"format": FORMAT, "about": json.dumps(about)})
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())         # the bytes are on the disk before the name points to them
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def load_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and what was told about them. One clear error for a file that is missing, damaged or something else."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint: there is no file {str(path)!r}; check the path, or start without --resume")
    content = path.read_bytes()
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8:8 + size])["__metadata__"]
        if header["format"] != FORMAT:
            raise KeyError(header["format"])
        return dict(read_tensors(content)), json.loads(header["about"])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"checkpoint: {str(path)!r} is not a whole minitx checkpoint ({type(error).__name__}: "
                         f"{str(error)[:80]}); it was cut short, damaged, or written by another program") from None


def save_run(path: str | os.PathLike[str], model: Module, optimizer: Optimizer, *, config: Mapping[str, Any],
             progress: Mapping[str, Any]) -> None:
    """Everything that a run needs to go on: parameters, moments, random state, thread count, its options and its progress."""
    arrays = {f"model.{name}": array for name, array in model.state_dict().items()}
    arrays |= {f"optimizer.{name}": array for name, array in optimizer.state_dict().items()}
    save_arrays(path, arrays, {"config": dict(config), "progress": dict(progress), "threads": threads(),
                               "optimizer": type(optimizer).__name__, "random": backend.stream().bit_generator.state})


def load_run(path: str | os.PathLike[str], model: Module, optimizer: Optimizer) -> tuple[dict[str, Any], list[str]]:
    """Put a run back: parameters, moments and random state. Returns its progress, and sentences about what differs now.

    Nothing is changed unless all of it fits.
    """
    arrays, about = load_arrays(path)
    if about["optimizer"] != type(optimizer).__name__:
        raise ValueError(f"checkpoint: {str(path)!r} was written with {about['optimizer']}, and this run uses "
                         f"{type(optimizer).__name__}; resume with the options of the first run")
    parts = {part: {n.removeprefix(f"{part}."): a for n, a in arrays.items() if n.startswith(f"{part}.")}
             for part in ("model", "optimizer")}
    optimizer.check_state_dict(parts["optimizer"])
    model.load_state_dict(parts["model"])
    optimizer.load_state_dict(parts["optimizer"])
    backend.stream().bit_generator.state = about["random"]
    remarks = []
    if about["threads"] != threads():
        remarks.append(f"the first part ran with {about['threads']} BLAS threads, this one has {threads()}: sums are rounded "
                       f"in another order, so the rest will agree only nearly")
    return about["progress"], remarks


def threads() -> int:
    """How many threads the matrix products use: their number decides the order of sums, and so the last bits."""
    return max((lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"), default=1)
