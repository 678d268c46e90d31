"""Save a run so that it goes on later, bit for bit, as if it had never stopped.

A checkpoint is one safetensors file: arrays by name, and a JSON text with everything else. It is data and nothing but data;
reading one executes nothing. It is written beside its place and then moved there in one step of the file system, so that a
kill at any moment leaves either the old file or the new one, whole. A digest over all of it finds every flipped bit.

Read next: `runs.py`, which writes one now and then. `docs/running.md` shows what is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as as_bytes
from threadpoolctl import threadpool_info

from .history import History
from .nn import Module
from .optim import Optimizer
from .randomness import generators

FORMAT = "minitx run 1"
LONGEST_HEADER = 10_000_000         # bytes: names, shapes and the JSON text; a foreign file is not read any further
MEASURED = {"loss": "float64", "grad_norm": "float64", "lr": "float64", "symbols_at": "int64", "seconds_at": "float64"}
ANOTHER = "give another checkpoint, or start anew, without --resume"
PARTS = {"config": dict, "environment": dict, "lr": float, "optimizer": str, "random": dict}


# Files of arrays


def save_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Write arrays by name, and `about` (anything that JSON can hold), to `path`, which never holds half a file."""
    path, text = Path(path), json.dumps(about, default=np.ndarray.tolist)
    plain = {n: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for n, a in arrays.items()}
    content = as_bytes(plain, {"format": FORMAT, "about": text, "digest": _digest(plain, text)})
    if _size(content) > LONGEST_HEADER:
        raise ValueError(f"checkpoint: names and JSON text of {str(path)!r} take {_size(content):,} bytes, and there may be "
                         f"{LONGEST_HEADER:,}; keep long things in arrays")
    write(path, content)


def write(path: Path, content: bytes) -> None:
    """Write a file that is never seen half written, whenever the program is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
        raise FileNotFoundError(f"checkpoint: there is no file {str(path)!r}; {ANOTHER}")
    try:
        with open(path, "rb") as file:      # first the header: a foreign file is not read to its end
            size = _size(file.read(8))
            if size > min(path.stat().st_size, LONGEST_HEADER):
                raise ValueError(f"a header of {size} bytes")
            metadata = json.loads(file.read(size))["__metadata__"]
        if metadata["format"] != FORMAT:
            raise ValueError(f"format {metadata['format']}")
        arrays = read_tensors(path.read_bytes())
        if _digest(arrays, metadata["about"]) != metadata["digest"]:
            raise ValueError("the digest differs")
        return arrays, json.loads(metadata["about"])
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"checkpoint: {str(path)!r} is not a whole minitx checkpoint ({type(error).__name__}: "
                         f"{str(error)[:80]!a}); it was cut short, damaged, or written by another program; "
                         f"{ANOTHER}") from None


def _size(content: bytes) -> int:
    """The length of the header, which stands before it."""
    return int.from_bytes(content[:8], "little")


def _digest(arrays: Mapping[str, np.ndarray], text: str) -> str:
    """A fingerprint of everything in the file."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"\n{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


# Runs


@dataclass
class Resumed:
    """What `load_run` gives beside the parameters, moments and random states that it has put back."""

    history: History
    extra: dict[str, np.ndarray]        # the arrays that `save_run` was given as `extra`
    remarks: list[str]                  # sentences about what differs now, so that the rest may agree only nearly


def save_run(path: str | os.PathLike[str], model: Module, optimizer: Optimizer, history: History, *,
             config: Mapping[str, Any], extra: Mapping[str, np.ndarray] | None = None) -> None:
    """Everything that a run needs to go on: parameters, moments, history, random states, and what it was started with.

    Args:
        config: the options that decide the numbers, in words and numbers; a run with others is not resumed from this file.
        extra: arrays of your own, such as the state that a recurrent net hands from one batch to the next.
    """
    arrays = {f"model.{n}": a for n, a in model.state_dict().items()}
    arrays |= {f"optimizer.{n}": a for n, a in optimizer.state_dict().items()}
    arrays |= {f"history.{n}": np.array(getattr(history, n), dtype) for n, dtype in MEASURED.items()}
    arrays["history.events"] = np.frombuffer(json.dumps(history.events).encode(), "uint8")
    if history.recorded:
        arrays["history.recorded"] = np.frombuffer(json.dumps(history.recorded).encode(), "uint8")
    arrays |= {f"extra.{n}": a for n, a in (extra or {}).items()}
    save_arrays(path, arrays, {
        "config": dict(config), "environment": environment(model), "lr": float(optimizer.lr),
        "optimizer": type(optimizer).__name__, "random": {n: g.bit_generator.state for n, g in generators(model).items()},
        "threads": history.threads})


def load_run(path: str | os.PathLike[str], model: Module, optimizer: Optimizer, *, config: Mapping[str, Any]) -> Resumed:
    """Put a run back into a model and an optimiser that were made as those that were saved. All of it, or nothing."""
    arrays, about = load_arrays(path)
    where = f"checkpoint: {str(path)!r}"
    if lacking := [n for n, kind in PARTS.items() if not isinstance(about, dict) or not isinstance(about.get(n), kind)]:
        raise ValueError(f"{where} lacks its part {', '.join(lacking)}; {ANOTHER}")
    kind, given = type(optimizer).__name__, json.loads(json.dumps(config))
    if about["optimizer"] != kind:
        raise ValueError(f"{where} was written with {about['optimizer']!r}, and this run uses {kind}; resume with that")
    if other := [n for n in {**about["config"], **given} if about["config"].get(n) != given.get(n)]:
        theirs, ours = (", ".join(f"{n} = {options.get(n)!r}" for n in other) for options in (about["config"], given))
        raise ValueError(f"{where} is of a run with {theirs}, and this one has {ours}; resume with the options of that run")

    parts = {part: {n.removeprefix(f"{part}."): a for n, a in arrays.items() if n.startswith(f"{part}.")}
             for part in ("model", "optimizer", "history", "extra")}
    history = _history(where, parts["history"])
    history.threads = _threads(where, about.get("threads"))             # of older files nobody knows
    states = _random_states(where, generators(model), about["random"])
    try:
        model.check_state_dict(parts["model"])
        optimizer.check_state_dict(parts["optimizer"])
    except ValueError as error:
        raise ValueError(f"{where} does not fit: {error}") from None
    for name, p in model.named_parameters():
        if parts["model"][name].dtype != p.dtype:
            raise ValueError(f"{where} has {name} in {parts['model'][name].dtype}, and the model in {p.dtype}; "
                             f"build the model as it was when saved")
    model.load_state_dict(parts["model"])
    optimizer.load_state_dict(parts["optimizer"])
    optimizer.lr = about["lr"]
    for name, generator in generators(model).items():
        generator.bit_generator.state = states[name]

    before, now = about["environment"], environment(model)
    remarks = [f"{n} was {before.get(n)} and is {now[n]} now, so the rest may agree only nearly with that of an unbroken run"
               for n in now if before.get(n) != now[n]]
    return Resumed(history, {n: a.copy() for n, a in parts["extra"].items()}, remarks)


def _history(where: str, arrays: Mapping[str, np.ndarray]) -> History:
    looks = {**MEASURED, "events": "uint8"}
    if lacking := [n for n, dtype in looks.items() if n not in arrays or f"{arrays[n].ndim} {arrays[n].dtype}" != f"1 {dtype}"]:
        raise ValueError(f"{where} lacks its history of {', '.join(lacking)}; {ANOTHER}")
    try:
        events = [(step, what) for step, what in json.loads(arrays["events"].tobytes())]
        recorded = json.loads(arrays["recorded"].tobytes()).items() if "recorded" in arrays else ()
        recorded = {int(step): numbers for step, numbers in recorded}
        [_] = {arrays[n].size for n in MEASURED}
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise ValueError(f"{where} has a history whose parts do not fit together; {ANOTHER}") from None
    return History(**{n: arrays[n].tolist() for n in MEASURED}, events=events, recorded=recorded)


def _threads(where: str, saved: Any) -> int | None:
    if saved is not None and (type(saved) is not int or saved < 1):
        raise ValueError(f"{where} tells of {saved!r} threads; expected a whole number of at least 1; {ANOTHER}")
    return saved


def _random_states(where: str, own: Mapping[str, np.random.Generator], saved: Mapping[str, Any]) -> dict[str, Any]:
    """The saved states, each tried on a generator that nobody uses."""
    if other := sorted(own.keys() ^ saved.keys()):
        raise ValueError(f"{where} and the model do not have the same random generators: {', '.join(other)}; "
                         f"build the model as it was when saved")
    for name, generator in own.items():
        try:
            type(generator.bit_generator)().state = saved[name]
        except Exception as error:          # each kind of generator has its own ways to refuse
            raise ValueError(f"{where} holds no state for the random generator {name}, which is a "
                             f"{type(generator.bit_generator).__name__} ({str(error)!r}); "
                             f"build the model as it was when saved") from None
    return dict(saved)


def environment(model: Module) -> dict[str, Any]:
    """What decides the last bits beside the options: the order of the sums in matrix products depends on these."""
    blas = [lib for lib in threadpool_info() if lib["user_api"] == "blas"]
    return {"BLAS threads": max((lib["num_threads"] for lib in blas), default=1),
            "BLAS": " ".join(sorted({f"{lib['internal_api']} {lib['version']} {lib.get('architecture')}" for lib in blas})),
            "NumPy": np.__version__, "device": model.parameters()[0].device}
