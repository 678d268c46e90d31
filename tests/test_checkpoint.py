"""Checkpoint files: what goes in comes out, and whatever else is in a file gives one clear error.

Read next: `test_saved_runs.py`, what is in the file of a run.
"""

import json
import os
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx import checkpoint
from minitx.checkpoint import load_arrays, save_arrays

from .common import refused, same

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b.0": np.array([np.nan, -0.0, np.inf], "float32"), "flags": np.array([True])}
ABOUT = {"words": "two\nlines, ü", "huge": 2**100, "nested": [{"x": None}], "lr": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


# Files of arrays


@pytest.mark.parametrize("array", [
    np.float64(3.5) * np.ones(()), np.zeros((0, 3), "float16"), np.arange(12).reshape(3, 4).T, np.arange(12)[::-2],
    np.array([1, 2], ">f4"), np.array([2**63], "uint64"), np.broadcast_to(np.float32(7), (2, 2)), np.array([1j], "complex64"),
], ids=["0-d", "empty", "transposed", "reversed", "big-endian", "uint64", "broadcast", "complex64"])
def test_every_kind_of_array_comes_back(array, folder):
    save_arrays(folder / "x", {"x": array}, ABOUT)
    arrays, about = load_arrays(folder / "x")
    assert about == ABOUT and arrays["x"].dtype == array.dtype.newbyteorder("=")
    assert arrays["x"].shape == array.shape and np.array_equal(arrays["x"], array)


def test_the_file_is_one_that_safetensors_reads(folder):
    from safetensors.numpy import load_file
    save_arrays(folder / "x", ARRAYS, ABOUT)
    assert same(ARRAYS, load_file(folder / "x"))


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_file_that_was_there_and_nothing_else(fails, tmp_path, monkeypatch):
    save_arrays(tmp_path / "x", ARRAYS, ABOUT)
    monkeypatch.setattr(os, fails, lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
    with pytest.raises(OSError, match="the disk is full"):
        save_arrays(tmp_path / "x", {}, {})
    assert same(load_arrays(tmp_path / "x")[0], ARRAYS) and os.listdir(tmp_path) == ["x"]


def test_what_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LONGEST_HEADER", 3000)
    refused(ValueError, lambda: save_arrays(tmp_path / "x", {}, {"text": "a" * 3000}), "there may be 3,000", "keep long things")
    assert os.listdir(tmp_path) == []


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    for path in (tmp_path / "no.checkpoint", tmp_path):
        refused(FileNotFoundError, lambda path=path: load_arrays(path), f"there is no file {str(path)!r}", "without --resume")


# Files that are something else


class Trap:
    """What a pickle may do when it is read."""

    def __reduce__(self):
        return os.abort, ()


def of(header, data=b"", size=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(header) if size is None else size).to_bytes(8, "little") + header + data


META = {"format": checkpoint.FORMAT, "about": "{}", "digest": ""}
TENSOR = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}
HOSTILE = {
    "empty": b"", "short": b"abc", "pickle": pickle.dumps(Trap()), "text": b"the cat sat on the mat\n" * 9,
    "zip": b"PK\3\4" + bytes(99), "huge header": of({}, size=2**63), "header beyond the file": of({}, size=3),
    "header longer than allowed": of(b" " * 10_000_001), "deep JSON": of(b"[" * 100_000), "not JSON": of(b"{]"),
    "list": of([]), "number": of(3), "text as header": of("abc"), "no metadata": of({}),
    "other metadata": of({"__metadata__": [1]}), "another program": of({"__metadata__": {"format": "pt"}}),
    "format 2": of({"__metadata__": {**META, "format": "minitx run 2"}}), "wrong digest": of({"__metadata__": META}),
    "no digest": of({"__metadata__": {"format": checkpoint.FORMAT, "about": "{}"}}),
    "about a number": of({"__metadata__": {**META, "about": 3}}), "deep digest": of({"__metadata__": {**META, "digest": [[]]}}),
    "no data": of({"__metadata__": META, "a": TENSOR}),
    "too much data": of({"__metadata__": META, "a": TENSOR}, bytes(17)),
    "NaN offsets": of({"__metadata__": META, "a": {**TENSOR, "data_offsets": [0, float("nan")]}}, bytes(16)),
    "offsets that overlap": of({"__metadata__": META, "a": TENSOR, "b": TENSOR}, bytes(16)),
    "negative offsets": of({"__metadata__": META, "a": {**TENSOR, "data_offsets": [-16, 0]}}, bytes(16)),
    "huge shape": of({"__metadata__": META, "a": {**TENSOR, "shape": [2**62, 2**62]}}, bytes(16)),
    "huge empty shape": of({"__metadata__": META, "a": {"dtype": "F64", "shape": [0, 2**63], "data_offsets": [0, 0]}}),
    "NaN shape": of({"__metadata__": META, "a": {**TENSOR, "shape": [float("nan")]}}, bytes(16)),
    "unknown dtype": of({"__metadata__": META, "a": {**TENSOR, "dtype": "OBJECT"}}, bytes(16)),
    "dtype that NumPy lacks": of({"__metadata__": META, "a": {**TENSOR, "dtype": "BF16", "shape": [8]}}, bytes(16)),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_file_of_another_kind_gives_one_clear_error(content, folder):
    (folder / "hostile").write_bytes(content)
    refused(ValueError, lambda: load_arrays(folder / "hostile"), "is not a whole minitx checkpoint", "damaged", "--resume")


def test_a_huge_foreign_file_is_not_read(folder):
    with open(folder / "film", "wb") as file:
        file.truncate(2**40)                                                # 1 TiB of zeros that take no place
    refused(ValueError, lambda: load_arrays(folder / "film"), "is not a whole minitx checkpoint")


def read_or_refused(path, content):
    """Whether a file with this content is refused with our error; else it holds what was saved."""
    path.write_bytes(content)
    try:
        arrays, about = load_arrays(path)
    except ValueError as error:
        assert "is not a whole minitx checkpoint" in str(error)
        return True
    assert same(arrays, ARRAYS) and about == ABOUT
    return False


def test_a_file_that_was_cut_short_is_refused_wherever_it_was_cut(folder):
    save_arrays(folder / "whole", ARRAYS, ABOUT)
    content = (folder / "whole").read_bytes()
    assert all(read_or_refused(folder / "part", content[:n]) for n in range(len(content)))
    assert not read_or_refused(folder / "part", content)


def test_a_byte_that_was_changed_is_noticed_wherever_it_is(folder):
    save_arrays(folder / "whole", ARRAYS, ABOUT)
    content, chance = (folder / "whole").read_bytes(), random.Random(0)
    accepted = 0
    for at in range(len(content)):
        for flip in (1 << chance.randrange(8), chance.randrange(1, 256)):
            accepted += not read_or_refused(folder / "flip", content[:at] + bytes([content[at] ^ flip]) + content[at + 1:])
    assert accepted < 20, "only blanks between the words of the header count for nothing"


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=300) | st.tuples(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 400)))
def test_random_bytes_and_random_patches_are_refused(folder, change):
    save_arrays(folder / "whole", ARRAYS, ABOUT)
    content = (folder / "whole").read_bytes()
    patch, start, stop = change if isinstance(change, tuple) else (change, 0, len(content))
    read_or_refused(folder / "random", content[:start] + patch + content[stop:])
