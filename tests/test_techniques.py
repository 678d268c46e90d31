"""Every technique of `examples/benchmarks/techniques.py` is in use where it is measured, at the real sizes; its switch takes it
away; and the numbers stay.
"""

import json
import sys
import threading

import pytest

from minitx import shards
from minitx.models import language

from .test_benchmarks import FOLDER, script, small, tiny  # noqa: F401  small sizes, in this process

# A function that runs in a step where the technique is in use, with what must hold of its variables and of what it returns.
WITNESSES = {
    "shards": ("Shards.one", lambda own, result: own["share"] < 1),
    "one shard for small models": ("Shards.one", lambda own, result: own["share"] == 1),
    "memory that stays": ("keep_freed_memory", None),
    "panels": ("panels", lambda own, result: len(result) > 1),
    "slopes at once": ("lstm_back", None),
    "vocabulary table": ("Symbols.times", None),
    "all of the recurrence": ("lstm_steps", None),
    "sums as products": ("column_sum", lambda own, result: own["home"].blas),
    "attention in place": ("attention.<locals>.backward", None),
    "gelu in place": ("gelu.<locals>.backward", None),
    "attention in tiles": ("flash_attention.<locals>.backward", None),
    "one symbol at a time": ("writer.<locals>.write", None),
    "erfc as a polynomial": ("_erfc", None),
}


@pytest.fixture
def techniques(monkeypatch):
    found = script("techniques")
    for name, work in found.WORKS.items():
        if work.kind in ("training", "generation", "attention"):
            monkeypatch.setitem(found.WORKS, name, small(work))
    return found


def pairs():
    """The techniques with their workloads, in full size."""
    sys.path.insert(0, str(FOLDER))
    try:
        techniques = script("techniques")
        return [pytest.param(name, techniques.WORKS[work], id=f"{name}, {work}")
                for name, (_, works) in techniques.SWITCHES.items() for work in works]
    finally:
        sys.path.remove(str(FOLDER))
        for module in {path.stem for path in FOLDER.glob("*.py")} & sys.modules.keys():
            del sys.modules[module]


def runs(techniques, work, function, holds):
    """Whether the function runs in one step, and that holds of it."""
    found = []

    def look(frame, event, result):
        if event == "return" and frame.f_code.co_qualname == function:
            found.append(holds is None or holds(frame.f_locals, result))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        techniques.peer_minitx.build(work, "flash" if work.kind == "attention" else "")()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return any(found)


@pytest.mark.parametrize(("name", "work"), [pair for pair in pairs() if pair.values[0] != "nothing"])
def test_a_technique_is_in_use_until_its_switch_takes_it_away(name, work, techniques, monkeypatch):
    monkeypatch.setattr(shards, "cores", lambda: 2)
    techniques.peer_minitx.BUILDERS["function"] = techniques.function
    assert runs(techniques, work, *WITNESSES[name]), f"{name} makes no difference to {work.name}"
    techniques.SWITCHES[name][0](monkeypatch.setattr)
    assert not runs(techniques, work, *WITNESSES[name]), f"{name} is still in use"


@pytest.mark.parametrize(("name", "work"), pairs())
def test_the_numbers_stay(name, work, techniques, monkeypatch):
    monkeypatch.setattr(language, "OFTEN", 0)               # the table, however few the places
    work = techniques.WORKS[work.name]
    expected = techniques.prepare(techniques.ALL, work, 1)
    techniques.SWITCHES[name][0](monkeypatch.setattr)
    techniques.agree(work, {techniques.ALL: expected, name: techniques.prepare(techniques.ALL, work, 1)})


def test_other_numbers_are_refused(techniques):
    work = techniques.WORKS["W1"]
    right = techniques.prepare(techniques.ALL, work, 1)
    wrong = [[loss + 0.1 for loss in results] for results in right]
    with pytest.raises(SystemExit, match=r"W1 without panels: .* so the times cannot be compared"):
        techniques.agree(work, {techniques.ALL: right, "panels": wrong})


def test_the_program_writes_ratios_of_rounds_and_whether_they_agree(techniques, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(techniques, "prepare", lambda *_: [[]])
    times = iter([1.0, 2.0, 3.0, 1.0, 3.0, 3.0, 2.0, 8.0, 7.0])
    monkeypatch.setattr(techniques.worker, "measure", lambda *_: next(times))
    monkeypatch.setattr(techniques, "SWITCHES", {"panels": (None, ["W1"]), "nothing": (None, ["W1"])})
    monkeypatch.setattr(sys, "argv", ["techniques.py", "--work", "W1", "--rounds", "3", "--out", "out.json"])
    techniques.main()
    result = json.loads((tmp_path / "out.json").read_text())["workloads"]["W1"]
    assert result["ms"] == {"all": 1.0, "panels": 3.0, "nothing": 3.0}
    assert result["without"] == {"panels": {"median": 3.0, "low": 2.0, "high": 4.0, "steady": False},
                                 "nothing": {"median": 3.0, "low": 3.0, "high": 3.5, "steady": True}}
    assert [line.endswith("unsteady") for line in capsys.readouterr().out.splitlines()] == [False, True, False, False]


@pytest.mark.parametrize(("args", "says"), [
    (["--work", "W9"], "no workload W9; there are W1, W1s"),
    (["--rounds", "0"], "--rounds: 0; expected at least 1"),
    (["--threads", "0"], "--threads: 0; expected at least 1"),
    (["--seconds", "-1"], "--seconds: -1.0; expected at least 0"),
    (["--out", "nowhere/out.json"], "--out: nowhere/out.json; there is no folder nowhere"),
])
def test_what_cannot_be_measured_or_written_is_refused_first(args, says, techniques, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["techniques.py", *args])
    with pytest.raises(SystemExit):
        techniques.main()
    assert says in capsys.readouterr().err
