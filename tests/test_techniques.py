"""Every switch of `examples/benchmarks/techniques.py` really takes the technique away, and the numbers stay."""

import json
import sys

import pytest

from minitx import backend
from minitx.models import language

from .test_benchmarks import FOLDER, script, small, tiny  # noqa: F401  small sizes, in this process


@pytest.fixture
def techniques(monkeypatch):
    found = script("techniques")
    for name, work in found.WORKS.items():
        if work.kind in ("training", "generation", "attention"):
            monkeypatch.setitem(found.WORKS, name, small(work))
    monkeypatch.setattr(language, "OFTEN", 0)               # the table, however few the places
    return found


def names():
    sys.path.insert(0, str(FOLDER))
    try:
        return [(name, work) for name, (_, works) in script("techniques").SWITCHES.items() for work in works]
    finally:
        sys.path.remove(str(FOLDER))
        for module in {path.stem for path in FOLDER.glob("*.py")} & sys.modules.keys():
            del sys.modules[module]


@pytest.mark.parametrize(("name", "work"), names())
def test_a_switch_puts_another_form_in_place_and_the_numbers_stay(name, work, techniques, monkeypatch):
    work = techniques.WORKS[work]
    expected = techniques.prepare(techniques.ALL, work, 1)
    used = []

    def put(owner, attribute, value):
        def counted(*args, **options):
            used.append(attribute)
            return value(*args, **options)

        monkeypatch.setattr(owner, attribute, counted)

    techniques.SWITCHES[name][0](put)
    techniques.agree(work, {techniques.ALL: expected, name: techniques.prepare(techniques.ALL, work, 1)})
    assert used or (name == "sums as products" and not backend.device("cpu").blas)


def test_other_numbers_are_refused(techniques):
    work = techniques.WORKS["W1"]
    right = techniques.prepare(techniques.ALL, work, 1)
    wrong = [[loss + 0.1 for loss in results] for results in right]
    with pytest.raises(SystemExit, match=r"W1 without panels: .* so the times cannot be compared"):
        techniques.agree(work, {techniques.ALL: right, "panels": wrong})


def test_the_program_writes_ratios_of_rounds(techniques, monkeypatch, tmp_path):
    monkeypatch.setattr(techniques, "prepare", lambda *_: [[]])
    times = iter([1.0, 2.0, 1.0, 3.0, 2.0, 8.0])
    monkeypatch.setattr(techniques.worker, "measure", lambda *_: next(times))
    monkeypatch.setattr(techniques, "SWITCHES", {"panels": (None, ["W1"])})
    monkeypatch.setattr(sys, "argv", ["techniques.py", "--work", "W1", "--rounds", "3", "--out", "out.json"])
    techniques.main()
    result = json.loads((tmp_path / "out.json").read_text())["workloads"]["W1"]
    assert result["ms"] == {"all": 1.0, "panels": 3.0}
    assert result["without"] == {"panels": {"median": 3.0, "low": 2.0, "high": 4.0}}


def test_an_unknown_workload_is_refused(techniques, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["techniques.py", "--work", "W9"])
    with pytest.raises(SystemExit):
        techniques.main()
    assert "no workload W9; there are W1, W1s" in capsys.readouterr().err
