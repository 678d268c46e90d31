"""Mutants: a function with one small mistake, of a kind that a person makes. All of them, one after the other.

A sign flipped, * and / confused, a factor or a term dropped, operands or two gradients swapped, another axis or constant, a
transposition too many or too few, a keyword forgotten, a comparison a little off, a statement lost.

Read next: `mutation.py`, which holds the tests to finding them.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

OTHERS = {
    ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div], ast.Div: [ast.Mult], ast.Pow: [ast.Mult],
    ast.FloorDiv: [ast.Mult], ast.Mod: [ast.Mult], ast.BitAnd: [ast.BitOr], ast.BitOr: [ast.BitAnd],
    ast.Lt: [ast.LtE, ast.Gt], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.Lt], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In], ast.And: [ast.Or], ast.Or: [ast.And],
}
LIBRARIES = {"xp", "math", "itertools"}             # what a function of theirs is called with stands in its brackets
ATOMS = (ast.Constant, ast.Name, ast.UnaryOp, ast.keyword, ast.Slice, ast.Tuple, ast.Starred)   # shown with what is around
KEYWORDS = {"copy", "strict"}                       # they save work, or watch over it, and change no number
ALIKE = {"array_module", "wide", "dtype"}           # of the arrays in one call, which are of one device and one width


class Place(NamedTuple):
    """Where a node hangs in its tree, `holder[key]`, and the piece of source by which a person would find it."""

    holder: list | dict
    key: int | str
    shown: "Place | None"

    @property
    def node(self) -> ast.AST:
        return self.holder[self.key]


def mutants(root: ast.AST) -> Iterator[str]:
    """Change the tree in one place, name the change, `before -> after`; change it back, and so on until all were made."""
    seen: Counter[str] = Counter()
    partners = bound_together(root)
    for place in places(root):
        node, shown = place.node, place.shown or place
        before = ast.unparse(shown.node)
        for new in alternatives(place, partners):
            place.holder[place.key] = ast.fix_missing_locations(ast.copy_location(new, node))
            after = ast.unparse(shown.node)
            if after != before:
                name = " ".join(f"{before} -> {after}".split())
                seen[name] += 1
                yield name + f" ({seen[name]})" * (seen[name] > 1)
            place.holder[place.key] = node


def places(node: ast.AST, shown: Place | None = None) -> Iterator[Place]:
    """Everything below a node that may be changed."""
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns"):
            continue
        holder, keys = (value, range(len(value))) if isinstance(value, list) else (vars(node), [name])
        for key in keys:
            child = holder[key]
            if isinstance(child, ast.AST) and not changes_nothing(node, child):
                place = Place(holder, key, shown if isinstance(child, ATOMS) else None)
                yield place
                inner = (shown or place) if isinstance(child, ATOMS) else place if isinstance(child, ast.expr) else None
                yield from places(child, inner)


def changes_nothing(parent: ast.AST, node: ast.AST) -> bool:
    """A docstring, an error, a keyword without effect, the order behind `in`, or which array is asked for what all share."""
    match parent, node:
        case _, ast.Raise() | ast.JoinedStr() | ast.Expr(ast.Constant()):
            return True
        case ast.Compare(_, [ast.In() | ast.NotIn()]), ast.Tuple():
            return True
        case _, ast.keyword(arg):
            return arg in KEYWORDS
        case (ast.Call(ast.Name(asked)), ast.Name()) | (ast.Attribute(_, asked), ast.Name()):
            return asked in ALIKE
    return False


def bound_together(root: ast.AST) -> dict[str, str]:
    """For every name that is bound beside others, as arguments or in `a, b = ...`, the next of them."""
    partners = {}
    for node in ast.walk(root):
        group = []
        if isinstance(node, ast.arguments):
            group = [arg.arg for arg in node.args]
        elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store):
            group = [n.id for n in node.elts if isinstance(n, ast.Name) and n.id not in LIBRARIES]
        if len(group) > 1:
            partners |= dict(zip(group, group[1:] + group[:1], strict=True))
    return partners


def alternatives(place: Place, partners: dict[str, str]) -> Iterator[ast.AST]:
    """What a mistake could have put in place of a node."""
    node = place.node
    if place.key == "test" and not isinstance(node, ast.Constant):
        yield from (ast.Constant(True), ast.Constant(False))
    match node:
        case ast.BinOp(left, op, right):
            yield from (ast.BinOp(left, other(), right) for other in OTHERS.get(type(op), ()))
            if not isinstance(op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)):
                yield ast.BinOp(right, op, left)
            yield from (left, right)
            if isinstance(op, ast.MatMult):
                yield from (ast.BinOp(transposed(left), op, right), ast.BinOp(left, op, transposed(right)))
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BoolOp(op, values):
            yield ast.BoolOp(OTHERS[type(op)][0](), values)
            yield from (ast.BoolOp(op, rest) if len(rest) > 1 else rest[0] for rest in without_one(values))
        case ast.Compare(left, ops, comparators):
            for i, op in enumerate(ops):
                yield from (ast.Compare(left, [*ops[:i], other(), *ops[i + 1:]], comparators) for other in OTHERS[type(op)])
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield from (ast.Constant(value + by) for by in ((1, -1) if value else (1,)))
        case ast.Constant(float(value)):
            yield ast.Constant(2 * value + (value == 0))
        case ast.Name(name, ast.Load()) if name in partners:
            yield ast.Name(partners[name], ast.Load())
        case ast.Tuple(elts, ctx) | ast.List(elts, ctx):
            for i in range(len(elts) - 1):
                yield type(node)([*elts[:i], elts[i + 1], elts[i], *elts[i + 2:]], ctx)
        case ast.Attribute(value, "T"):
            yield value
        case ast.Call(func, args, keywords):
            method = isinstance(func, ast.Attribute) and not (isinstance(func.value, ast.Name) and func.value.id in LIBRARIES)
            if method or (args and not isinstance(args[0], ast.Starred)):
                yield func.value if method else args[0]
            yield from (ast.Call(func, args, rest) for rest, gone in zip(without_one(keywords), keywords)
                        if gone.arg not in KEYWORDS)
        case ast.AugAssign(target, op, value):
            yield from (ast.AugAssign(target, other(), value) for other in OTHERS.get(type(op), ()))
            yield ast.Pass()
        case ast.Expr():
            yield ast.Pass()
        case ast.Assign(targets, value) if isinstance(targets[0], ast.Subscript) or bound(targets[0]) & names(value):
            yield ast.Pass()


def transposed(node: ast.AST) -> ast.AST:
    return ast.Attribute(node, "T", ast.Load())


def without_one(items: list) -> Iterator[list]:
    return (items[:i] + items[i + 1:] for i in range(len(items)))


def bound(target: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
