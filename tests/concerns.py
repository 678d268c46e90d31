"""Which tests concern which op, as plain calls: `pytest.mark.parametrize` is spelled out here, without pytest.

A test concerns the ops among its arguments. If there are none, those that its code or that of its arguments mentions.

Read next: `mutation.py`.
"""

import inspect
import itertools
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from minitx.op import Op

from . import test_cases_ops, test_contract, test_float16, test_guards, test_losses, test_observe, test_refusals, test_subgradients
from .harness import Sample, locked
from .units import nested

SUITE = (test_contract, test_losses, test_subgradients, test_guards, test_refusals, test_cases_ops, test_float16, test_observe)
FIRST = ["test_values_equal_those_of_the_oracle", "test_shapes_and_dtypes_go_through", "test_backward_agrees_with_nudges"]
OF_THE_CHECKER = {"test_any_gradient_that_is_slightly_off_is_found", "test_every_input_has_a_gradient_whose_factor_matters"}


class Check(NamedTuple):
    """One test with its arguments."""

    test: Callable
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        return self.test.__name__

    def __call__(self) -> None:
        self.test(**self.arguments)

    def cost(self) -> tuple:
        """The cheap and strong ones come first, the stand-in device last."""
        return (self.arguments.get("device", "cpu") != "cpu", self.name in FIRST or len(FIRST),
                FIRST.index(self.name) if self.name in FIRST else 0)


def checks_of(suite: tuple[types.ModuleType, ...] = SUITE) -> Callable[[set[str]], list[Check]]:
    """For a set of names, of ops and of other functions, the checks that concern one of them, in the order in which to run them."""
    by_name = defaultdict(list)
    everything = sorted(calls(suite), key=Check.cost)
    for place, check in enumerate(everything):
        for name in given(check) or mentioned(check):
            by_name[name].append(place)
    return lambda names: [everything[place] for place in sorted({place for name in names for place in by_name[name]})]


def calls(suite: tuple[types.ModuleType, ...]) -> Iterator[Check]:
    for module in suite:
        for name, test in vars(module).items():
            if name.startswith("test_") and name not in OF_THE_CHECKER:
                fixtures = {"tally": lambda **numbers: None}
                choices = [list(choice(*mark.args)) for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
                for chosen in itertools.product(*choices):
                    arguments = {k: v for part in chosen for k, v in part.items()}
                    wanted = set(inspect.signature(test).parameters)
                    if wanted <= arguments.keys() | fixtures.keys():
                        yield Check(test, {k: arguments.get(k, fixtures.get(k)) for k in wanted})


def choice(names: str, rows: Any) -> Iterator[dict[str, Any]]:
    """The arguments that one `parametrize` gives, one after the other; arrays refuse writes."""
    keys = [name.strip() for name in names.split(",")]
    for row in rows:
        if getattr(row, "marks", ()):
            continue                                                         # needs a GPU
        values = getattr(row, "values", row) if not isinstance(row, dict) else row
        values = values if len(keys) > 1 or values is not row else (row,)
        yield {k: v.map(locked) if isinstance(v, Sample) else v for k, v in zip(keys, values, strict=True)}


def given(check: Check) -> set[str]:
    """The ops that a check gets, themselves or by name."""
    strings = [parts(check.arguments.get(name)) for name in ("op", "name", "case")]
    return {x for x in itertools.chain(*strings) if isinstance(x, str)} | {x.name for x in parts(check.arguments) if isinstance(x, Op)}


def mentioned(check: Check) -> set[str]:
    """The names and strings in the code of a check and of the functions that it gets."""
    functions = [x for x in (check.test, *parts(check.arguments)) if isinstance(x, types.FunctionType)]
    found = {x for f in functions for code in nested(f.__code__) for x in (*code.co_names, *code.co_consts)}
    return {x for x in found if isinstance(x, str)}


def parts(x: Any) -> list[Any]:
    """What stands in nested tuples, lists and dictionaries."""
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (tuple, list)) and not isinstance(x, Sample):
        return [y for part in x for y in parts(part)]
    return [x]
