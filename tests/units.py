"""The functions under mutation: those of all ops and what they call, with the source trees of which they are made.

Read next: `mutation.py`.
"""

import ast
import contextlib
import dis
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from minitx.op import Op

MATHEMATICS = ("minitx.ops.", "minitx.sums.wide", "minitx.sums.narrow", "minitx.sums.total",
               "minitx.sums.row_sum", "minitx.sums.row_dot", "minitx.sums.row_max", "minitx.sums.column_sum",
               "minitx.backend.clear_rows", "minitx.panels.panels", "minitx.panels.multiplier",
               "minitx.sums.scatter_add", "minitx.backend.erfc")


class Unit(NamedTuple):
    """One function or lambda: its tree, the code that is compiled of it, and the live functions that run that code."""

    name: str
    tree: Any
    module: ast.Module
    index: int
    functions: list[Any]
    ops: set[str]                   # whose tests concern it

    @property
    def file(self) -> str:
        return self.functions[0].__code__.co_filename

    def code(self) -> types.CodeType:
        """The tree, compiled. A function keeps its cells, so names from around it, which a mutant may lose, end it."""
        body, around = self.tree.body, self.functions[0].__code__.co_freevars
        if around:
            self.tree.body = body + ast.parse(f"if 0: {', '.join(around)}").body
        code = codes(self.module, self.file)[self.index]
        self.tree.body = body
        return code

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside the block, the live functions do what the tree says now."""
        before = [(f, f.__code__, f.__defaults__, f.__kwdefaults__) for f in self.functions]
        code, args = self.code(), self.tree.args
        defaults = tuple(map(ast.literal_eval, args.defaults)) or None
        by_name = {arg.arg: ast.literal_eval(d) for arg, d in zip(args.kwonlyargs, args.kw_defaults) if d} or None
        try:
            for f in self.functions:
                f.__code__, f.__defaults__, f.__kwdefaults__ = code, defaults, by_name
            yield
        finally:
            for f, *was in before:
                f.__code__, f.__defaults__, f.__kwdefaults__ = was


def units_of(ops: dict[str, Op], home: tuple[str, ...] = MATHEMATICS) -> list[Unit]:
    """Every function of `home` that is an op or is called by one, in the order of the source."""
    own = {op.vjp: name for name, op in ops.items()}
    units: dict[tuple, Unit] = {}
    for name, op in ops.items():
        for f, label in reached(op.vjp, home).items():
            key = (f.__code__.co_filename, f.__code__)
            if key not in units:
                units[key] = Unit(label, *definition(f.__code__), [], set())
            if f not in units[key].functions:
                units[key].functions.append(f)
            units[key].ops.add(own.get(f, name))
    return sorted(units.values(), key=lambda unit: (unit.file, unit.tree.lineno, unit.tree.col_offset))


def reached(start: Any, home: tuple[str, ...]) -> dict[Any, str]:
    """A function and all that it calls, directly or not, each with the name under which it stands in its file."""
    found = {start: start.__code__.co_qualname.split(".")[0]}
    todo = [start]
    while todo:
        f = todo.pop()
        used = {name: f.__globals__.get(name) for code in nested(f.__code__) for name in globals_of(code)}
        used |= {kept: kept for kept in (cell.cell_contents for cell in f.__closure__ or ())
                 if isinstance(kept, Op | types.FunctionType)}
        for name, value in used.items():
            for g in flat(value):
                if f"{g.__module__}.{g.__qualname__}".startswith(home) and g not in found:
                    found[g] = g.__code__.co_qualname.split(".")[0].replace("<lambda>", str(name))
                    todo.append(g)
    return found


def globals_of(code: types.CodeType) -> set[str]:
    return {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}


def flat(value: Any) -> list[Any]:
    """The functions in a value: an op's own, or those in a table."""
    if isinstance(value, (dict, tuple)):
        return [f for part in (value.values() if isinstance(value, dict) else value) for f in flat(part)]
    f = value.vjp if isinstance(value, Op) else value
    return [f] if isinstance(f, types.FunctionType) else []


def definition(code: types.CodeType) -> tuple[Any, ast.Module, int]:
    """The tree of a function; a module with its statement and the imports; which of the code objects in there it is."""
    source = ast.parse(Path(code.co_filename).read_text())
    imports = [s for s in source.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    for statement in source.body:
        module = ast.Module([*imports, statement], [])
        made = codes(module, code.co_filename)
        if isinstance(statement, (ast.FunctionDef, ast.Assign)) and code in made:
            places = set(code.co_positions())
            for node in ast.walk(statement):
                a_lambda = isinstance(node, ast.Lambda) and position(node.body) in places
                if a_lambda or getattr(node, "name", "") == code.co_name:
                    return node, module, made.index(code)
    raise LookupError(f"{code.co_filename} has no {code.co_name} any more; was it changed during the run?")


def position(node: Any) -> tuple:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def codes(module: ast.Module, file: str) -> list[types.CodeType]:
    return list(nested(compile(module, file, "exec", dont_inherit=True)))


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from nested(inner)
