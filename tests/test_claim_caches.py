"""The claims about caches and about streaming: their rules answer yes and no, and the scripts measure, judge and draw."""

import numpy as np
import pytest

from .test_claims import Path, elsewhere, run, script  # noqa: F401  (elsewhere: in an empty folder)


def test_kv_cache(monkeypatch, capsys):
    claim = script("kv_cache")
    monkeypatch.setattr(claim, "LENGTHS", (1, 2, 20))
    found = run("kv_cache", monkeypatch)
    numbers = found["numbers"]
    assert numbers["same"] and numbers["bytes"] == [n * 2 * 2 * 96 * 4 for n in (1, 2, 20)]
    assert all(len(of) == 3 and min(of) > 0 for of in numbers["seconds"].values())
    out = capsys.readouterr().out
    assert "symbols/s with a cache" in out and "verdict: " in out
    assert Path("out/claims/kv_cache.png").read_bytes()[:4] == b"\x89PNG"


def test_without_its_cache_the_model_reads_all_again():
    claim, read = script("kv_cache"), []
    model = claim.Rereading(5, 8, 2, 1, 9, rng=np.random.default_rng(0))
    embed = model.embed
    model.embed = lambda ids, *rest: read.append(ids.shape[1]) or embed(ids, *rest)
    list(claim.generate(model, [1], 4))
    assert read == [1, 2, 3, 4]


def test_a_block_of_symbols_counts_by_its_median():
    total = script("kv_cache").total
    assert total([1.0] * 15 + [99.0]) == 16 and total([1.0] * 16 + [2.0] * 8) == 32 and total([3.0]) == 3


def cached(gain=12.0, first=1.0, same=True, size=(10, 80)):
    seconds = {"with a cache": [1.0, 2.0], "without": [first, 2.0 * gain]}
    return {"lengths": [1, 8], "seconds": seconds, "bytes": size, "same": same}


@pytest.mark.parametrize("numbers, word", [
    (cached(), "holds"),
    (cached(gain=9.9), "holds in part"),
    (cached(size=(10, 90)), "holds in part"),                                # its memory grows faster than the text
    (cached(gain=1, size=(10, 10)), "does not hold here"),
    (cached(same=False), "undecided"),
    (cached(first=1.4), "undecided"),
    (cached(first=0.7), "undecided"),
])
def test_the_rule_about_caches(numbers, word):
    assert script("kv_cache").verdict(numbers).word == word


def test_streaming(monkeypatch, capsys):
    claim = script("streaming")
    monkeypatch.setattr(claim, "LENGTHS", (2, 4))
    monkeypatch.setattr(claim, "ROUNDS", 2)
    found = run("streaming", monkeypatch)
    numbers = found["numbers"]
    assert numbers["bytes"] == {"RNN": [2 * 96 * 4] * 2, "GRU": [2 * 96 * 4] * 2, "LSTM": [2 * 2 * 96 * 4] * 2,
                                claim.CACHED: [2 * 2 * 2 * 96 * 4, 4 * 2 * 2 * 96 * 4], claim.UNCACHED: [16, 32]}
    assert all(len(ms) == 2 and min(ms) > 0 for ms in numbers["ms"].values()) and max(numbers["error"].values()) < 1e-5
    out = capsys.readouterr().out
    assert "behind a history of" in out and "verdict: " in out and len(found["parts"]) == 5
    assert Path("out/claims/streaming.png").read_bytes()[:4] == b"\x89PNG"


def streams(rnn=1.1, lstm_bytes=5, cache=32, without=9.0, error=1e-6):
    ms = {"RNN": [1, rnn], "GRU": [1, 1], "LSTM": [1, 1], "Transformer, with a cache": [1, 2],
          "Transformer, without": [1, without]}
    size = {"RNN": [5, 5], "GRU": [5, 5], "LSTM": [5, lstm_bytes], "Transformer, with a cache": [1, cache],
            "Transformer, without": [1, 32]}
    return {"lengths": [64, 2048], "ms": ms, "bytes": size, "error": {"RNN": 0.0, "LSTM": error}}


@pytest.mark.parametrize("numbers, no", [
    (streams(), []),
    (streams(rnn=1.6), ["RNN"]),
    (streams(lstm_bytes=6), ["LSTM"]),
    (streams(cache=20), ["Transformer with a cache"]),
    (streams(cache=40), ["Transformer with a cache"]),
    (streams(without=3.9), ["Transformer without"]),
])
def test_the_rule_about_streaming(numbers, no):
    verdict = script("streaming").verdict(numbers)
    assert [part.split(":")[0] for part, answer in verdict.parts.items() if not answer] == no
    assert verdict.word == ("holds in part" if no else "holds")
    assert script("streaming").verdict(numbers | {"error": {"RNN": 2e-4}}).word == "undecided"
    assert script("streaming").verdict(numbers | {"error": {"RNN": 1e-6, "GRU": float("nan")}}).word == "undecided"


@pytest.mark.parametrize("name", ["kv_cache", "streaming"])
def test_a_script_tells_its_claim_statistic_rule_and_control(name):
    doc = script(name).__doc__
    assert f"python examples/claims/{name}.py" in doc
    assert all(f"\n{word}" in doc for word in ("Claim ", "Statistic ", "Rule ", "Control "))
