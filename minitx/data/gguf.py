"""Reading GGUF files: a model of llama.cpp in one file, with its tokenizer, and weights in four bits or eight.

A file is, one behind the other, with all numbers in little-endian order:

    "GGUF", version, count of tensors, count of entries
    entries     key, type, value: sizes, the tokenizer's symbols and merges, and what else is to be known
    tensors     name, lengths of the axes (the last one first), type, offset
    data        from the next multiple of `general.alignment` on, each tensor at its offset

Strings have their length in front, arrays their type and length. Weights of few bits come in blocks of 32, each with a scale of
its own, so that one large weight spoils 31 others and not a whole matrix.

Source  the description of the format by ggml, which defines it; versions 2 and 3
Read next: `minitx/interchange.py`, which puts such weights into a model.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}      # as of `struct`
STRING, ARRAY = 8, 9


class GGUF(NamedTuple):
    """What is in a file: entries by key, and the tensors as float32 by name."""

    entries: dict[str, Any]
    tensors: dict[str, NDArray[np.float32]]


def read_gguf(path: str | os.PathLike[str]) -> GGUF:
    """All of a GGUF file. Tensors of type F32, F16, Q4_1 and Q8_0 are read; of others, an error says which.

    In such a file Llama's queries and keys turn neighbours, not halves: see `ops.rotary`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"read_gguf: there is no file {str(path)!r} (looked from {Path.cwd()}); check the path")
    try:
        with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            return Reader(content).everything()
    except (struct.error, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"read_gguf: {str(path)!r} cannot be read ({type(error).__name__}: {error}); "
                         f"it was cut short, or is something else") from None


class Reader:
    """A place in the bytes of a file, which moves on as they are read."""

    def __init__(self, content: bytes | mmap) -> None:
        self.content, self.at = content, 0

    def everything(self) -> GGUF:
        if self.take(4) != b"GGUF" or self.number("I") not in (2, 3):
            raise ValueError("it does not begin with GGUF and version 2 or 3")
        tensors, entries = self.number("Q"), self.number("Q")
        known = {self.string(): self.value(self.number("I")) for _ in range(entries)}
        places = {self.string(): self.place() for _ in range(tensors)}
        step = known.get("general.alignment", 32)
        start = math.ceil(self.at / step) * step
        return GGUF(known, {name: self.tensor(name, shape, kind, start + offset)
                            for name, (shape, kind, offset) in places.items()})

    def take(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self.content):
            raise ValueError("it ends too early")
        return self.content[self.at - count:self.at]

    def number(self, letter: str) -> Any:
        return struct.unpack(f"<{letter}", self.take(struct.calcsize(f"<{letter}")))[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.number("I"), self.number("Q")
            return [self.value(kind) for _ in range(count)]
        return self.number(NUMBERS[kind])

    def place(self) -> tuple[tuple[int, ...], int, int]:
        """Shape, type and offset of a tensor. Its first axis is that whose numbers lie side by side: our last."""
        axes = [self.number("Q") for _ in range(self.number("I"))]
        return tuple(axes[::-1]), self.number("I"), self.number("Q")

    def tensor(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> NDArray[np.float32]:
        if kind not in TYPES:
            known = ", ".join(f"{number} ({known.name})" for number, known in TYPES.items())
            raise ValueError(f"the weights of {name} are of type {kind}; known here are {known}")
        blocks, rest = divmod(math.prod(shape), TYPES[kind].weights)
        if rest or start + blocks * TYPES[kind].block.itemsize > len(self.content):
            raise ValueError(f"it ends within {name}")
        return TYPES[kind].unpack(np.frombuffer(self.content, TYPES[kind].block, blocks, start)).reshape(shape)


# Types of weights: how a block of them lies in the file, and how it becomes float32


def plain(blocks: np.ndarray) -> NDArray[np.float32]:
    return blocks.astype(np.float32)


def q8_0(blocks: np.ndarray) -> NDArray[np.float32]:
    """scale · n, with whole numbers n from -128 to 127."""
    return blocks["n"] * blocks["scale"].astype(np.float32)[:, None]


def q4_1(blocks: np.ndarray) -> NDArray[np.float32]:
    """scale · n + low, with whole numbers n from 0 to 15. Byte j has two of them: those of the weights j and j + 16."""
    x = np.empty((len(blocks), 32), np.float32)
    x[:, :16], x[:, 16:] = blocks["n"] & 15, blocks["n"] >> 4
    x *= blocks["scale"].astype(np.float32)[:, None]
    x += blocks["low"].astype(np.float32)[:, None]
    return x


class Type(NamedTuple):
    name: str
    weights: int                                        # in a block
    block: np.dtype
    unpack: Callable[[np.ndarray], NDArray[np.float32]]


TYPES = {0: Type("F32", 1, np.dtype("<f4"), plain), 1: Type("F16", 1, np.dtype("<f2"), plain),
         3: Type("Q4_1", 32, np.dtype([("scale", "<f2"), ("low", "<f2"), ("n", "u1", 16)]), q4_1),
         8: Type("Q8_0", 32, np.dtype([("scale", "<f2"), ("n", "i1", 32)]), q8_0)}
