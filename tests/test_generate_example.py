"""The example that writes: characters come one by one, chosen as its options say, or a beam's best all at once."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script of examples/ in an empty folder, on a small text; what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    Path("book.txt").write_text("the cat sat on the mat, and the rat sat on the cat. " * 40)

    def script(name, *args):
        monkeypatch.setattr(sys, "argv", [name, "--text", "book.txt", *args])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield script
    sys.modules.pop("train_language_model", None)


@pytest.mark.parametrize("kind", [["--model", "gru"], ["--model", "transformer"], ["--model", "rnn", "--carry"]])
def test_generate(run, kind):
    run("train_language_model.py", *kind, "--steps", "2", "--batch", "2", "--characters", "5")
    options = [*kind, "--prompt", "the ", "--characters", "30"]
    drawn = run("generate.py", *options, "--seed", "1")
    assert re.fullmatch(r"the .{30}\n", drawn, re.S) and run("generate.py", *options, "--seed", "1") == drawn
    assert run("generate.py", *options, "--seed", "2") != drawn
    likeliest = run("generate.py", *options, "--temperature", "0")
    assert likeliest == run("generate.py", *options, "--top-k", "1") == run("generate.py", *options, "--top-p", "0")
    assert drawn.startswith(run("generate.py", *options, "--seed", "1", "--stop", drawn[9]).rstrip("\n"))
    best = run("generate.py", *options[:-1], "4", "--beam", "2", "--stop", ".").splitlines()
    assert len(best) == 2 and all(re.match(r" *\d+\.\d\d  the ", line) for line in best)


def test_what_is_missing_is_said_in_one_sentence(run):
    for args, words in ((["--model", "gru"], "there is no out/language_model_gru_own.checkpoint; train one first"),):
        with pytest.raises(SystemExit, match=words):
            run("generate.py", *args)
