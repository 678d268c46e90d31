"""What the source of minitx may name: of an array library only what NumPy and CuPy share, of minitx only lower floors.

Nothing is run here, the source is only read; `test_strict.py` has the device on which it runs.
"""

import ast
import json
import operator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path.relative_to(ROOT) for path in (ROOT / "minitx").rglob("*.py"))
CUPY = frozenset(json.loads((ROOT / "tests" / "cupy_names.json").read_text()))
UFUNC_METHODS = {"at", "reduce", "accumulate", "reduceat", "outer"}

# A file imports from its own floor and those below. The last two look on, or hold the house together.
FLOORS = ["options memory parallel waits special backend sums panels randomness", "contract saved tape tensor observer op",
          "ops", "init nn", "optim clipping schedules data models carried seq2seq",
          "history progress shards training decoding sampling generation translation checkpoint runs interchange pretrained",
          "gradcheck profiling recorded log recording graph drawing fonts plots terminal theory alignments pruning", "__init__"]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}


def complaints(source, path):
    """One sentence for everything in the source that the file at `path` (minitx/...) may not name."""
    return [f"{path}:{node.lineno}: {why}" for node in ast.walk(ast.parse(source))
            for why in [*array_names(node), *imports(node, Path(path))]]


def is_module(node):
    """Whether an expression is the array library: xp, device.xp, array_module(x)."""
    name = ast.unparse(node.func) + "()" if isinstance(node, ast.Call) else ast.unparse(node)
    return name.split(".")[-1] in ("xp", "array_module()")


def array_names(node):
    if isinstance(node, ast.Attribute) and (name := dotted(node)) and not is_shared(name):
        yield f"NumPy and CuPy do not share {name}"
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and is_module(node.args[0]):
        yield "getattr hides a name of the array library; write it out"
    if isinstance(node, ast.Assign):
        for target in node.targets:
            both = (target, node.value)
            pairs = zip(*(e.elts for e in both)) if all(isinstance(e, ast.Tuple) for e in both) else [both]
            if any(is_module(value) and not is_module(name) for name, value in pairs):
                yield "the array library is always called xp"


def dotted(node):
    """xp.random.default_rng -> "random.default_rng"; None for what does not start at the array library."""
    parts = []
    while isinstance(node, ast.Attribute) and not is_module(node):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join(parts) if is_module(node) else None


def is_shared(name):
    """Whether NumPy 2 and CuPy 14 both have it."""
    try:
        operator.attrgetter(name)(np)
    except AttributeError:
        return False
    ufunc, _, method = name.partition(".")
    return name in CUPY or (ufunc in CUPY and method in UFUNC_METHODS)


def imports(node, path):
    for name in imported(node, path):
        library, *inside = name.split(".")
        if library in ("cupy", "cupyx", "cupy_backends") and path != Path("minitx/backend.py"):
            yield f"only backend.py imports {library}"
        if library == "numpy" and path.parent == Path("minitx/ops"):
            yield "an op asks array_module for its library and does not import numpy"
        if library == "minitx":
            here = path.parts[1].removesuffix(".py")
            there = inside[0] if inside and inside[0] in FLOOR else "__init__"
            if here not in FLOOR:
                yield f"{here} stands on no floor; give it a place in FLOORS"
            elif FLOOR[there] > FLOOR[here]:
                yield f"{here} on floor {FLOOR[here]} imports {name} from floor {FLOOR[there]}"


def imported(node, path):
    """The absolute dotted names that an import statement brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = path.parent.parts[:len(path.parent.parts) - node.level + 1] if node.level else ()
        return [".".join([*package, *filter(None, [node.module]), alias.name]) for alias in node.names]
    return []


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_names_and_imports(path):
    assert not complaints((ROOT / path).read_text(encoding="utf-8"), path)


def test_all_of_minitx_is_read_and_has_a_floor():
    assert {Path("minitx/backend.py"), Path("minitx/ops/softmax.py"), Path("minitx/nn/layers.py")} <= set(SOURCES)
    assert {path.parts[1].removesuffix(".py") for path in SOURCES} <= set(FLOOR)


@pytest.mark.parametrize("source, path, complaint", [
    ("y = xp.vecdot(a, b)", "minitx/ops/x.py", "do not share vecdot"),
    ("with array_module(x).errstate(): pass", "minitx/optim.py", "do not share errstate"),
    ("def f(x):\n    return backend.array_module(x).block(x)", "minitx/ops/x.py", "do not share block"),
    ("rng = device(name).xp.random.Generator(0)", "minitx/backend.py", "do not share random.Generator"),
    ("xp.add.resolve_dtypes(a)", "minitx/ops/x.py", "do not share add.resolve_dtypes"),
    ("y = xp.alltrue(x)", "minitx/ops/x.py", "do not share alltrue"),
    ("xp.zeros.at(a, i, b)", "minitx/ops/x.py", "do not share zeros.at"),
    ("lib, H = array_module(x), 3", "minitx/ops/x.py", "always called xp"),
    ("np = self.xp", "minitx/ops/x.py", "always called xp"),
    ("f = getattr(xp, name)", "minitx/ops/x.py", "write it out"),
    ("def f():\n    import cupy", "minitx/op.py", "only backend.py imports cupy"),
    ("from cupyx.scipy import special", "minitx/ops/x.py", "only backend.py imports cupyx"),
    ("import numpy as np", "minitx/ops/x.py", "does not import numpy"),
    ("from numpy import exp", "minitx/ops/x.py", "does not import numpy"),
    ("from . import ops", "minitx/tensor.py", "tensor on floor 1 imports minitx.ops from floor 2"),
    ("from .ops.softmax import softmax", "minitx/op.py", "op on floor 1"),
    ("from ..nn import Linear", "minitx/ops/x.py", "ops on floor 2 imports minitx.nn.Linear from floor 3"),
    ("from .. import training", "minitx/nn/x.py", "nn on floor 3"),
    ("import minitx.training", "minitx/models/x.py", "models on floor 4"),
    ("def f():\n    from .recording import record", "minitx/training.py", "training on floor 5"),
    ("import minitx as mx", "minitx/data/x.py", "data on floor 4"),
    ("from . import __version__", "minitx/checkpoint.py", "checkpoint on floor 5"),
    ("from .backend import Array", "minitx/attic.py", "attic stands on no floor"),
])
def test_a_bad_source_is_complained_about(source, path, complaint):
    found = complaints(source, path)
    assert len(found) == 1 and complaint in found[0]


@pytest.mark.parametrize("source, path", [
    ("xp = array_module(x)\nxp.add.at(y, i, xp.exp(x)); xp.random.default_rng(0).random(3)", "minitx/ops/x.py"),
    ("xp, (B, T) = array_module(x), x.shape\nself.xp = xp", "minitx/ops/x.py"),
    ("import cupy\nimport numpy as np", "minitx/backend.py"),
    ("from . import backend\nfrom .tape import Node\nfrom .tensor import Tensor", "minitx/op.py"),
    ("from ..backend import wide\nfrom . import basic\nfrom .softmax import softmax", "minitx/ops/x.py"),
    ("from minitx.data.text import as_ids", "minitx/data/batching.py"),
    ("from . import models, nn, ops\nfrom .gradcheck import gradcheck", "minitx/__init__.py"),
])
def test_a_good_source_is_not(source, path):
    assert not complaints(source, path)
