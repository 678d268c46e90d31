"""The examples in docstrings hold: `>>>` lines run, and print what stands below them, to the letter.

An example may use `np`, `mx`, `ops`, every op by its name, and what it is an example of. It imports nothing.
"""

import doctest
import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import minitx as mx
from minitx import ops

OPS = [op for op in mx.OPS.values() if not op.name.startswith("unroll(")]      # those of `unroll` have its example
MODULES = [mx, *(importlib.import_module(m.name) for m in pkgutil.walk_packages(mx.__path__, "minitx."))]
PUBLIC = ["clipping.clip_grad_norm", "data.text.Vocabulary", "decoding.beam_search", "gradcheck.gradcheck",
          "ops.unroll.unroll", "profiling.profile", "saved.saved", "schedules.inverse_sqrt", "schedules.warmup_cosine",
          "tape.gradients", "tensor.no_grad", "tensor.tensor"]
PROVIDED = {"np": np, "mx": mx, "ops": ops, **{name: getattr(ops, name) for name in ops.__all__}}


def doctest_of(docstring, name="a docstring", **names):
    """The examples of a docstring; `names` are provided to them beside the usual ones."""
    return doctest.DocTestParser().get_doctest(docstring or "", PROVIDED | names, name, None, 0)


def collected():
    """{name: examples} of all docstrings of minitx that have one. An Op is no function: its docstring is that of its vjp."""
    found = {f"{op.vjp.__module__}.{op.name}": doctest_of(op.vjp.__doc__, op.name) for op in OPS}
    for module in MODULES:
        for test in doctest.DocTestFinder().find(module, module.__name__, globs={}):
            own = test.name.removeprefix(module.__name__ + ".").split(".")[0]           # the function, or the class of a method
            names = {own: getattr(module, own)} if hasattr(module, own) else {}
            found.setdefault(test.name, doctest_of(test.docstring, test.name, **names))
    return {name: test for name, test in found.items() if test.examples}


def run(test):
    """Run the examples of one docstring; AssertionError with doctest's own report if one is wrong."""
    report = []
    failed = doctest.DocTestRunner(verbose=False).run(test, out=report.append).failed
    assert not failed, "".join(report)


def wanting(op):
    """What is wrong with the examples of an op, before they are run; "" if nothing is."""
    examples = doctest_of(op.vjp.__doc__).examples
    if not 1 <= len(examples) <= 2:
        return f"{op.name} has {len(examples)} lines of example; one or two show what to remember"
    return "" if examples[-1].want else f"the example of {op.name} shows nothing"


EXAMPLES = collected()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_the_docstring_shows(name):
    run(EXAMPLES[name])


def test_every_op_has_an_example():
    assert [problem for problem in map(wanting, OPS) if problem] == []


def test_the_functions_that_a_reader_calls_first_have_one():
    assert {f"minitx.{name}" for name in PUBLIC} - set(EXAMPLES) == set()


def test_no_example_in_the_source_is_left_out():
    written = sum(source.read_text("utf-8").count(">>> ") for source in Path(mx.__file__).parent.rglob("*.py"))
    assert sum(len(test.examples) for test in EXAMPLES.values()) == written


# the checks above, tried on examples that are wrong

@pytest.mark.parametrize("wrong", [
    ">>> relu.vjp(np.array([0.0]))[1](np.ones(1)).tolist()\n[1.0]",         # another number
    ">>> relu.vjp(np.array([0.0]))[1](np.ones(1)).tolist()\n[0]",           # the same number, written otherwise
    ">>> 1 + 1",                                                            # prints, and shows nothing
    ">>> x = 1\n1",                                                         # shows, and prints nothing
    ">>> no_such_name\n1",
    ">>> np.log(np.zeros(1)).tolist()\n[-inf]",                             # warnings are errors
], ids=["wrong number", "wrong form", "nothing shown", "nothing printed", "unknown name", "warning"])
def test_a_wrong_example_fails(wrong):
    with pytest.raises(AssertionError):
        run(doctest_of(wrong))


def test_a_good_example_passes():
    run(doctest_of(">>> relu.vjp(np.array([0.0]))[1](np.ones(1)).tolist()\n[0.0]"))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_example_notices_a_wrong_op(op):
    def off(values):
        return tuple(map(off, values)) if isinstance(values, (tuple, list)) else None if values is None else 3 * values + 1

    @mx.op()
    def wrong(*xs, **static):
        y, backward = op.vjp(*xs, **static)
        return off(y), lambda *dys: off(backward(*dys))

    with pytest.raises(AssertionError):
        run(doctest_of(op.vjp.__doc__, op.name, **{op.name: wrong}))


def test_an_op_without_an_example_is_found():
    @mx.op()
    def bare(x):
        """y = x."""
        return x, lambda dy: dy

    @mx.op()
    def silent(x):
        """y = x.

        >>> x = 1
        """
        return x, lambda dy: dy

    assert wanting(bare).startswith("bare has 0 lines")
    assert wanting(silent) == "the example of silent shows nothing"
    assert wanting(ops.relu) == ""
