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

from _pytest.mark import ParameterSet

from minitx.op import Op

from . import (
    test_cases_ops,
    test_contract,
    test_float16,
    test_guards,
    test_losses,
    test_observe,
    test_refusals,
    test_subgradients,
)
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

    def cost(self) -> tuple[bool, int]:
        """The cheap and strong ones come first, the stand-in device last."""
        return self.arguments.get("device", "cpu") != "cpu", [*FIRST, self.name].index(self.name)


def checks_of(suite: tuple[types.ModuleType, ...] = SUITE) -> Callable[[set[str]], list[Check]]:
    """For names of ops and of other functions: the checks that concern one of them, in the order in which to run them."""
    by_name = defaultdict(set)
    everything = sorted(calls(suite), key=Check.cost)
    for place, check in enumerate(everything):
        for name in given(check) or mentioned(check):
            by_name[name].add(place)
    return lambda names: [everything[place] for place in sorted(set().union(*[by_name[name] for name in names]))]


def calls(suite: tuple[types.ModuleType, ...]) -> Iterator[Check]:
    """Every test with all its arguments, but for those that need more of pytest than `parametrize`."""
    for module in suite:
        for name, test in vars(module).items():
            if name.startswith("test_") and name not in OF_THE_CHECKER:
                marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
                for chosen in itertools.product(*[rows(*mark.args) for mark in marks]):
                    arguments = dict(itertools.chain(*chosen))
                    if "tally" in inspect.signature(test).parameters:
                        arguments["tally"] = lambda **numbers: None
                    if inspect.signature(test).parameters.keys() == arguments.keys():
                        yield Check(test, arguments)


def rows(names: str, values: Any) -> list[list[tuple[str, Any]]]:
    """The arguments that one `parametrize` gives, with samples that refuse writes. What is marked needs a GPU."""
    keys = names.split(", ")
    sets = [ParameterSet.extract_from(value, force_tuple=len(keys) == 1) for value in values]
    return [[(key, x.map(locked) if isinstance(x, Sample) else x) for key, x in zip(keys, row.values, strict=True)]
            for row in sets if not row.marks]


def given(check: Check) -> set[str]:
    """The ops that a check gets, themselves or by name."""
    strings = parts([check.arguments.get(name) for name in ("op", "name", "case")])
    return {x for x in strings if isinstance(x, str)} | {x.name for x in parts(check.arguments) if isinstance(x, Op)}


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
