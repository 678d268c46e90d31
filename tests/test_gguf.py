"""GGUF files, made by hand here: blocks of four and eight bits, entries of every type, and whatever is no such file."""

import struct

import numpy as np
import pytest

from minitx.data.gguf import read_gguf

from .common import refused


def gguf(entries, tensors, version=3, alignment=32):
    """The bytes of a GGUF file: entries as (key, type, bytes), tensors as (name, shape, type, bytes)."""
    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    for key, kind, value in entries:
        head += string(key) + struct.pack("<I", kind) + value
    data = b""
    for name, shape, kind, content in tensors:
        data += b"\0" * (-len(data) % alignment)
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += content
    return head + b"\0" * (-len(head) % alignment) + data


def q4_1(scale, low, numbers):
    """A block of 32 weights: the number of byte j in its lower half, that of byte j + 16 in its upper."""
    return struct.pack("<2e16B", scale, low, *(a | b << 4 for a, b in zip(numbers[:16], numbers[16:])))


def test_tensors_of_a_gguf_file_are_what_its_blocks_say(tmp_path):
    numbers = [[(7 * j + j // 16 + row) % 16 for j in range(64)] for row in range(3)]
    blocks = b"".join(q4_1(0.5, -3, row[:32]) + q4_1(2, 1, row[32:]) for row in numbers)
    whole = np.arange(-32, 32).reshape(2, 32)
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([], [
        ("four", (3, 64), 3, blocks), ("eight", (2, 32), 8, b"".join(struct.pack("<e32b", 0.25, *row) for row in whole)),
        ("plain", (2, 3), 0, np.arange(6, dtype="<f4").tobytes()), ("half", (1,), 1, np.array([1.5], "<f2").tobytes()),
        ("none", (0, 4), 0, b"")]))
    found = read_gguf(path).tensors
    expected = {"four": np.array(numbers) * np.repeat([0.5, 2], 32) + np.repeat([-3, 1], 32), "eight": whole * 0.25,
                "plain": np.arange(6).reshape(2, 3), "half": [1.5], "none": np.zeros((0, 4))}
    assert list(found) == list(expected)
    for name, tensor in found.items():
        assert tensor.dtype == "float32"
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)


def test_entries_of_a_gguf_file(tmp_path):
    strings = b"".join(struct.pack("<Q", len(s)) + s for s in (b"\xc4\xa0a", b""))
    (tmp_path / "a.gguf").write_bytes(gguf([
        ("u8", 0, b"\xff"), ("i8", 1, b"\xff"), ("u16", 2, b"\xff\xff"), ("i16", 3, b"\xff\xff"), ("u32", 4, b"\xff" * 4),
        ("i32", 5, b"\xff" * 4), ("f32", 6, struct.pack("<f", 1.5)), ("flag", 7, b"\1"), ("u64", 10, b"\xff" * 8),
        ("i64", 11, b"\xff" * 8), ("f64", 12, struct.pack("<d", 0.1)), ("text", 8, struct.pack("<Q", 2) + "é".encode()),
        ("words", 9, struct.pack("<IQ", 8, 2) + strings),
        ("rows", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ2H", 2, 2, 3, 4)),
        ("general.alignment", 4, struct.pack("<I", 64))],
        [("x", (1,), 0, struct.pack("<f", 7)), ("y", (1,), 0, struct.pack("<f", 8))], version=2, alignment=64))
    entries, tensors = read_gguf(tmp_path / "a.gguf")
    assert entries == {"u8": 255, "i8": -1, "u16": 65535, "i16": -1, "u32": 2**32 - 1, "i32": -1, "f32": 1.5, "flag": True,
                       "u64": 2**64 - 1, "i64": -1, "f64": 0.1, "text": "é", "words": ["Ġa", ""], "rows": [[3, 4]],
                       "general.alignment": 64}
    assert (tensors["x"].tolist(), tensors["y"].tolist()) == ([7], [8])


@pytest.mark.parametrize("content, part", [
    (b"", "cannot be read"), (b"GGUF", "ends too early"), (b"PK\3\4" + b"\0" * 40, "does not begin with GGUF"),
    (gguf([], [], version=1), "version 2 or 3"),
    (gguf([], [("x", (64,), 2, b"\0" * 36)]), "x are of type 2; known here are 0 (F32), 1 (F16), 3 (Q4_1), 8 (Q8_0)"),
    (gguf([], [("x", (3,), 0, b"\0" * 11)]), "ends within x"), (gguf([], [("x", (30,), 8, b"\0" * 34)]), "ends within x"),
    (gguf([("general.alignment", 4, b"\0" * 4)], [("x", (1,), 0, b"\0" * 4)]), "ZeroDivisionError"),
    (gguf([("k", 13, b"")], []), "KeyError"), (gguf([("k", 9, struct.pack("<IQ", 8, 2**60))], []), "ends too early"),
])
def test_other_files_are_refused(content, part, tmp_path):
    (tmp_path / "x.gguf").write_bytes(content)
    refused(ValueError, lambda: read_gguf(tmp_path / "x.gguf"), "read_gguf: ", part)


def test_every_beginning_of_a_gguf_file_is_refused(tmp_path):
    whole = gguf([("k", 8, struct.pack("<Q", 1) + b"a")], [("x", (2,), 0, b"\0" * 8)])
    for size in range(len(whole)):
        (tmp_path / "x.gguf").write_bytes(whole[:size])
        refused(ValueError, lambda: read_gguf(tmp_path / "x.gguf"), "cannot be read")
    (tmp_path / "x.gguf").write_bytes(whole)
    assert read_gguf(tmp_path / "x.gguf").entries == {"k": "a"}
    refused(FileNotFoundError, lambda: read_gguf(tmp_path / "y.gguf"), "there is no file")
