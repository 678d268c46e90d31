"""Sentence pairs and their pieces: what comes with minitx is whole, and pieces write any text and give it back.

Read next: `test_translation.py`, what is learned from them.
"""

import json
import sys
from configparser import ConfigParser
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data import Pieces, load_pairs
from minitx.data.pieces import BYTES

from .common import refused

TEXTS = ["low lower lowest", "neu neuer neueste", "新的 最新的"] * 3


@pytest.fixture(scope="module")
def pieces():
    pytest.importorskip("tokenizers", reason='pieces need tokenizers: pip install "minitx[text]"')
    return Pieces.learn(TEXTS, V=270)


# Sentence pairs


@pytest.mark.parametrize("pair, train, test, same", [("en-de", 25_850, 1_439, 25), ("en-zh", 17_217, 750, 10)])
def test_pairs_hold_out_sentences_that_training_has_not(pair, train, test, same):
    pairs = load_pairs(pair)
    assert (len(pairs.train), len(pairs.test)) == (train, test)
    sources, targets = map(set, zip(*pairs.train))
    assert not sources & {source for source, _ in pairs.test}
    assert sum(target in targets for _, target in pairs.test) == same, "as the docstring says"
    for sentence in (sentence for pair in pairs.train + pairs.test for sentence in pair):
        assert sentence and sentence == sentence.strip() and not set(sentence) & set("\t\r\n")
    assert repr(pairs) == f"Pairs(name='manual {pair}')"


def test_pairs_are_the_same_sentence_in_two_languages():
    assert load_pairs().train[0] == ("What is Access2Base?", "Was ist Access2Base?")
    assert ("Returns a random number between 0 and 1.", "返回大于 0 且小于 1 的随机数。") in load_pairs("en-zh").test


def test_an_unknown_pair_lists_those_there_are():
    refused(ValueError, lambda: load_pairs("de-en"), "load_pairs", "'de-en'", '"en-de"', '"en-zh"')


def test_every_bundled_text_is_installed_and_has_its_licence():
    config = ConfigParser()
    config.read(Path(__file__).parent.parent / "setup.cfg")
    installed = config["options.package_data"]["minitx.data"].split()
    folder = files("minitx.data") / "corpora"
    names, licences = {file.name for file in folder.iterdir()}, (folder / "LICENCES.md").read_text(encoding="utf-8")
    assert {"help_en_de.train.tsv.gz", "help_en_zh.test.tsv"} < names
    assert [name for name in names if not any(fnmatch(f"corpora/{name}", pattern) for pattern in installed)] == []
    assert [name for name in names - {"LICENCES.md"} if f"`{name}`" not in licences] == []
    assert "Mozilla Public" in licences and "https://mozilla.org/MPL/2.0/" in licences


# Pieces


def test_frequent_words_are_one_piece_and_rare_ones_several(pieces):
    ids = pieces.encode("lowest slow")
    assert pieces.labels(ids) == ["low", "est", " ", "s", "low"] and len(pieces) == 270
    assert ids.dtype == np.int64


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_comes_back(pieces, text):
    text = text.encode("utf-8", "replace").decode()                                 # without lone surrogates
    ids = pieces.encode(text)
    assert pieces.decode(ids) == text
    assert not {pieces.start, pieces.stop} & set(ids.tolist()), "no text says that it stops"
    assert "".join(label for label in pieces.labels(ids) if label != "·") == text.replace("·", "")


def test_the_names_of_start_and_stop_are_text_like_any_other(pieces):
    assert pieces.decode(pieces.encode("<stop> <start>")) == "<stop> <start>"
    assert pieces.labels([pieces.start, pieces.stop]) == ["<start>", "<stop>"]
    assert pieces.decode([pieces.start, *pieces.encode("low"), pieces.stop]) == "low"


def test_a_character_of_several_pieces_is_named_once(pieces):
    ids = [id_of(pieces, byte) for byte in "龙".encode()]
    assert pieces.labels(ids) == ["·", "·", "龙"] and pieces.decode(ids[:2]) == "\ufffd"


def id_of(pieces, byte):
    [letter] = [letter for letter, value in BYTES.items() if value == byte]
    return pieces.tokenizer.token_to_id(letter)


def test_the_same_texts_give_the_same_pieces_and_a_file_gives_them_back(pieces, tmp_path):
    assert Pieces.learn(iter(TEXTS), V=270).tokenizer.to_str() == pieces.tokenizer.to_str()
    pieces.save(tmp_path / "pieces.json")
    json.loads((tmp_path / "pieces.json").read_text(encoding="utf-8"))
    again = Pieces.load(tmp_path / "pieces.json")
    assert len(again) == len(pieces) and again.encode("<stop> 最新").tolist() == pieces.encode("<stop> 最新").tolist()


def test_pieces_refuse_what_makes_no_sense(pieces, tmp_path):
    refused(ValueError, lambda: Pieces.learn(TEXTS, V=257), "Pieces.learn", "V is 257", "at least 258")
    refused(TypeError, lambda: Pieces.learn("a text"), "Pieces.learn", "a str", "several")
    refused(TypeError, lambda: pieces.encode(["low"]), "Pieces.encode", "list")
    refused(ValueError, lambda: pieces.decode([270]), "Pieces.decode", "270")
    refused(ValueError, lambda: pieces.encode("ab\ud800"), "Pieces.encode: '\\ud800' at position 2", "surrogate")
    refused(FileNotFoundError, lambda: Pieces.load(tmp_path / "no.json"), "Pieces.load", "no.json", "learn them")


@pytest.mark.parametrize("text", [b"no JSON", b"{}", b"\xff"])
def test_a_file_of_no_tokenizer_is_refused(text, tmp_path):
    pytest.importorskip("tokenizers", reason='pieces need tokenizers: pip install "minitx[text]"')
    (tmp_path / "bad.json").write_bytes(text)
    refused(ValueError, lambda: Pieces.load(tmp_path / "bad.json"), "Pieces.load: ", "bad.json", "cannot be read")


@pytest.mark.parametrize("change", [
    lambda about: about["model"]["vocab"].update({"<start>": 1, "<stop>": 0}),
    lambda about: about["model"]["vocab"].update({"龙": 270}),
    lambda about: about.update(model={"type": "WordLevel", "unk_token": "?", "vocab": about["model"]["vocab"]}),
    lambda about: about.update(pre_tokenizer={"type": "Whitespace"}),
    lambda about: about["pre_tokenizer"].update(add_prefix_space=True),
    lambda about: about.update(normalizer={"type": "Lowercase"}),
    lambda about: about.update(post_processor={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}),
], ids=["other ids", "no bytes", "words", "split elsewhere", "a space in front", "small letters", "something behind"])
def test_a_tokenizer_of_another_kind_is_refused(pieces, change, tmp_path):
    about = json.loads(pieces.tokenizer.to_str())
    about["added_tokens"] = []
    (tmp_path / "own.json").write_text(json.dumps(about), encoding="utf-8")
    assert len(Pieces.load(tmp_path / "own.json")) == 270
    change(about)
    (tmp_path / "other.json").write_text(json.dumps(about), encoding="utf-8")
    refused(ValueError, lambda: Pieces.load(tmp_path / "other.json"), "Pieces.load: ", "other.json", "of another kind")


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    refused(ModuleNotFoundError, lambda: Pieces.learn(TEXTS, V=270), "tokenizers", 'pip install "minitx[text]"')
