"""The strict stand-in: a device on the CPU that behaves like CuPy where CuPy hurts.

An `ndarray` here holds a NumPy array and hands out only what `cupy.ndarray` has; `xp` is NumPy, reduced to the names of
CuPy 14 (`cupy_names.json`). What a GPU would refuse is refused here, and every wait for the device is counted. The
rules are CuPy's unless a comment says "stricter". Missing kernels, the order of sums and races show on a GPU only.

    x = minitx.tensor([1.0, 2.0], device="strict")
    with strict.syncs() as waits:
        float(x.array.sum())
    assert waits == ["float"]

Read next: `test_strict.py`, a test for every rule.
"""

import contextlib
import json
import types
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from minitx import backend

NAMES = frozenset(json.loads((Path(__file__).parent / "cupy_names.json").read_text()))

# What cupy.ndarray and cupy.random.Generator have in common with NumPy's
ATTRIBUTES = "T dtype imag itemsize mT nbytes ndim real shape size strides"
METHODS = """all any argmax argmin argpartition argsort astype clip compress conj conjugate copy cumprod cumsum diagonal
    dot fill flatten max mean min nonzero prod ravel repeat reshape round searchsorted sort squeeze std sum swapaxes
    take trace transpose var view"""
DRAWS = """beta binomial chisquare dirichlet exponential f gamma geometric hypergeometric integers logseries poisson
    power random standard_exponential standard_gamma standard_normal uniform"""

# Keywords that NumPy has and CuPy lacks
REDUCTIONS, CREATIONS = "sum prod max min amax amin mean var std any all", "zeros ones empty full arange eye"
LACKING = {**{name: {"where", "initial", "mean", "correction"} for name in REDUCTIONS.split()},
           **{name: {"device", "like"} for name in CREATIONS.split()},
           "take": {"mode"}, "einsum": {"out"}, "unique": {"sorted"}, "astype": {"casting", "subok"}}
# From this argument on, integers are Python's
PLAIN = {"zeros": 0, "ones": 0, "empty": 0, "eye": 0, "tri": 0,
         "reshape": 1, "broadcast_to": 1, "transpose": 1, "swapaxes": 1, "moveaxis": 1, "split": 1}
# Functions whose result has a shape that depends on values, so that the host waits for it
WAITING = {"argwhere", "compress", "extract", "flatnonzero", "nonzero", "unique"}
# The dtypes for which ufunc.at has an atomic operation, and the ufuncs that can reduce
ATOMIC = {"add": "int32 uint32 uint64 float16 float32 float64", "maximum": "int32 uint32 uint64 float32 float64",
          "minimum": "int32 uint32 uint64 float32 float64"}
REDUCING = {"reduce": {"add", "multiply"}, "accumulate": {"add", "multiply"}, "reduceat": {"add"}}

_records = []


@contextlib.contextmanager
def syncs():
    """A list that grows by one word whenever the host waits for the device inside the block."""
    _records.append([])
    try:
        yield _records[-1]
    finally:
        _records.pop()


def _wait(why):
    for record in _records:
        record.append(why)


def unwrap(value):
    """An argument for NumPy: device arrays are opened, in lists and tuples too; NumPy's own arrays are refused."""
    if isinstance(value, ndarray):
        return value._inner
    if isinstance(value, np.ndarray):       # stricter: in an index CuPy makes a hidden copy
        raise TypeError("Unsupported type <class 'numpy.ndarray'>; move it to the device first")
    return type(value)(map(unwrap, value)) if type(value) in (list, tuple) else value


def wrap(value):
    """What NumPy returned, on the device: a scalar is a 0-d array there. The memory stays the same, and so does its
    read-only flag: a device array around a read-only NumPy array refuses writes.
    """
    if isinstance(value, (list, tuple)):
        parts = map(wrap, value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    return ndarray(value) if isinstance(value, np.ndarray) else value


def _call(function, name, args, kwargs, bound=0):
    """Call what NumPy calls `name`, as CuPy would. A method has its first argument (`bound` = 1) inside already."""
    if unknown := LACKING.get(name, set()) & set(kwargs):
        raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")
    for x in args[PLAIN[name] - bound if name in PLAIN else len(args):]:
        if any(isinstance(i, ndarray) for i in (x if isinstance(x, (list, tuple)) else (x,))):
            raise TypeError(f"{name}: 'ndarray' object cannot be interpreted as an integer")
    if name in WAITING or (name == "where" and len(args) == 1):
        _wait(name)
    options = {"mode": "wrap"} if name == "take" else {}
    return wrap(function(*unwrap(args), **{k: unwrap(v) for k, v in kwargs.items()}, **options))


def _method(name):
    return lambda self, *args, **kwargs: _call(getattr(self._inner, name), name, args, kwargs, bound=1)


_known = WeakValueDictionary()      # id of a NumPy array -> its one ndarray, so that `is` and `base` mean what they say


class ndarray:
    """A NumPy array behind glass."""

    __slots__ = ("__weakref__", "_inner", "base")
    __hash__ = None
    __array_ufunc__ = None      # np.exp(x) is refused (stricter), np.float32(2) * x comes to __rmul__
    __contains__ = None         # stricter: CuPy has none either, and Python would fetch one element after the other

    def __new__(cls, inner):
        self = _known.get(id(inner))
        if self is None:
            self = _known[id(inner)] = super().__new__(cls)
            self._inner = inner
            self.base = ndarray(inner.base) if isinstance(inner.base, np.ndarray) else None
        return self

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed; use .get()")

    def __array_function__(self, function, types, args, kwargs):
        raise TypeError(f"np.{function.__name__} on a device array (stricter); call it from array_module(x)")

    def _host(self, why):
        _wait(why)
        return self._inner.copy()

    def get(self): return self._host("get")
    def item(self): return self._host("item").item()
    def tolist(self): return self._host("tolist").tolist()
    def __int__(self): return int(self._host("int"))
    def __float__(self): return float(self._host("float"))
    def __bool__(self): return bool(self._host("bool"))
    def __format__(self, spec): return format(self._host("format"), spec)
    def __repr__(self): return repr(self._host("repr"))
    def __reduce__(self): return asarray, (self.get(),)
    def __len__(self): return len(self._inner)
    def __iter__(self): return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        index = self._index(index)
        value = self._inner[index]
        return wrap(self._inner[(*index, ...)] if isinstance(value, np.generic) else value)     # a 0-d view

    def __setitem__(self, index, value):
        if not isinstance(value, ndarray | np.generic | int | float):     # stricter: CuPy takes lists in some places
            raise TypeError(f"cannot assign a {type(value).__name__} to a part of a device array")
        self._inner[self._index(index)] = unwrap(value)

    def _index(self, index):
        """An index for NumPy. Integer arrays wrap around, however far out of range they are: CuPy never complains."""
        parts = [np.asarray(unwrap(i), None if i else int) if isinstance(i, list) else unwrap(i)
                 for i in (index if isinstance(index, tuple) else (index,))]
        axis, left = 0, self.ndim - sum(map(_width, parts))
        for place, part in enumerate(parts):
            if isinstance(part, np.ndarray):
                if part.dtype.kind == "b":
                    _wait("mask")
                elif self.shape[axis]:
                    parts[place] = np.asarray(part % self.shape[axis])
            axis += left if part is ... else _width(part)
        return tuple(parts)


def _width(part):
    """How many axes one part of an index takes up."""
    if isinstance(part, np.ndarray) and part.dtype.kind == "b":
        return part.ndim
    return int(part is not None and part is not ...)


def _operator(ufunc, reverse=False, inplace=False):
    def operator(self, other):
        if getattr(other, "__array_ufunc__", "none") is None and not isinstance(other, ndarray):
            return NotImplemented       # it asked for its own turn, as Tensor does
        operands = (other, self) if reverse else (self, other)
        return getattr(xp, ufunc)(*operands, out=self if inplace else None)
    return operator


OPERATORS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "pow": "power",
             "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
COMPARISONS = {"lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal", "gt": "greater", "ge": "greater_equal"}
UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}

for _short, _ufunc in {**OPERATORS, "matmul": "matmul"}.items():
    setattr(ndarray, f"__{_short}__", _operator(_ufunc))
    setattr(ndarray, f"__r{_short}__", _operator(_ufunc, reverse=True))
    if _short != "matmul":      # CuPy has no __imatmul__: x @= y makes a new array
        setattr(ndarray, f"__i{_short}__", _operator(_ufunc, inplace=True))
for _short, _ufunc in COMPARISONS.items():
    setattr(ndarray, f"__{_short}__", _operator(_ufunc))
for _short, _ufunc in UNARY.items():
    setattr(ndarray, f"__{_short}__", lambda self, _ufunc=_ufunc: getattr(xp, _ufunc)(self))
for _name in METHODS.split():
    setattr(ndarray, _name, _method(_name))
for _name in ATTRIBUTES.split():
    setattr(ndarray, _name, property(lambda self, _name=_name: wrap(getattr(self._inner, _name))))


class Ufunc:
    """A ufunc with CuPy's few options, and the methods for which CuPy has kernels."""

    def __init__(self, inner):
        self._inner, self.__name__ = inner, inner.__name__

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        for x in args:
            if not isinstance(x, ndarray | np.generic | int | float | complex):
                raise TypeError(f"{self.__name__}: Unsupported type {type(x)}")
        return wrap(self._inner(*unwrap(args), out=unwrap(out), dtype=dtype, casting=casting))

    def at(self, a, indices, b=None):
        if self.__name__ not in ATOMIC:
            raise NotImplementedError(f"`{self.__name__}.at` is not supported yet")
        index, dtypes = a._index(indices), ATOMIC[self.__name__]
        if any(isinstance(i, np.ndarray) and i.dtype.kind != "b" for i in index) and a.dtype.name not in dtypes.split():
            raise TypeError(f"scatter_{self.__name__} only supports {dtypes} as data type, got {a.dtype}")
        if not a._inner.flags.writeable:        # NumPy's own `at` forgets to look
            raise ValueError(f"{self.__name__}.at: the array is read-only")
        self._inner.at(a._inner, index, unwrap(b))

    def __getattr__(self, name):
        if name not in REDUCING:
            raise AttributeError(f"a CuPy ufunc has no attribute {name!r}")
        if self.__name__ not in REDUCING[name]:
            raise NotImplementedError(f"`{self.__name__}.{name}` is not supported yet")
        return lambda *args, **kwargs: _call(getattr(self._inner, name), "sum", args, kwargs)


class Generator:
    """CuPy's random generator: 18 methods, and no normal, choice, permutation or shuffle among them."""

    def __init__(self, seed=None):
        self._inner = np.random.default_rng(seed)


for _name in DRAWS.split():
    setattr(Generator, _name, _method(_name))


class Module:
    """A NumPy module in which only CuPy's names exist."""

    def __init__(self, inner, path=""):
        self._inner, self._path = inner, path

    def __getattr__(self, name):
        path = self._path + name
        if path not in NAMES:
            raise AttributeError(f"module 'cupy' has no attribute {path!r}")
        value = getattr(self._inner, name)
        if isinstance(value, types.ModuleType):
            value = Module(value, f"{path}.")
        elif isinstance(value, np.ufunc):
            value = Ufunc(value)
        elif not isinstance(value, type | float | None):        # dtypes and constants are NumPy's own
            value = _function(value, name)
        setattr(self, name, value)
        return value


def _function(function, name):
    def call(*args, **kwargs):
        result = _call(function, name, args, kwargs)
        return wrap(np.bool_(result)) if name in ("allclose", "array_equal", "array_equiv") else result
    return call


def asarray(data, dtype=None):
    """The way in: numbers, nested lists of them and NumPy arrays are copied, a device array stays where it is."""
    return wrap(np.asarray(data._inner, dtype) if isinstance(data, ndarray) else np.array(data, dtype))


def asnumpy(x):
    """The way out."""
    return x.get() if isinstance(x, ndarray) else np.asarray(x)


class Element:
    """What CuPy lets a fused function see of an array: its dtype and number of axes, operators, and `x[...] = value`."""

    __hash__ = None
    __array_ufunc__ = None

    def __init__(self, whole):
        self._whole, self._written = whole, False

    dtype, ndim = property(lambda self: self._whole.dtype), property(lambda self: self._whole.ndim)
    def __bool__(self): raise TypeError("fuse: no `if` on values in a fused function; use xp.where")
    def __getitem__(self, index): raise TypeError("fuse: a fused function sees one element and cannot pick another")

    def __setitem__(self, index, value):
        if index is not ...:
            raise TypeError("fuse: only x[...] = value can be fused")
        Fusing.add(value, 0, out=self)      # CuPy copies


class Number:
    """A plain number that a fused function was given. CuPy 14 computes with two of them in float16; only arrays may meet it."""

    __array_ufunc__ = None

    def __init__(self, value):
        self._value = value

    def _alone(self, *_):
        raise TypeError("fuse: CuPy computes with plain numbers in float16 inside a fused function; do that before the call")


class Fusing:
    """The `xp` of a fused function: ufuncs, `where` and `clip`."""

    def __getattr__(self, name):
        if not isinstance(getattr(xp, name), Ufunc) and name not in ("where", "clip"):
            raise TypeError(f"fuse: {name} is not element-wise and cannot be fused")

        def call(*args, **options):
            if options.keys() - {"out"}:
                raise TypeError(f"fuse: {name} takes no {min(options.keys() - {'out'})} in a fused function")
            if not any(isinstance(x, Element) for x in args):
                Number._alone(None)
            out = options.get("out")
            result = getattr(xp, name)(*map(_opened, args), **{k: _opened(v) for k, v in options.items()})
            if out is None:
                return Element(result)
            out._written = True
            return out
        return call


Fusing = Fusing()


def _opened(x):
    return x._whole if isinstance(x, Element) else x._value if isinstance(x, Number) else x


def _fused_operator(ufunc, reverse=False, inplace=False):
    def operator(self, *other):
        operands = (*other, self) if reverse else (self, *other)
        return getattr(Fusing, ufunc)(*operands, **({"out": self} if inplace else {}))
    return operator


for _short, _ufunc in OPERATORS.items():
    setattr(Element, f"__{_short}__", _fused_operator(_ufunc))
    if _short != "pow":         # as cupy.fuse: no 2 ** x
        setattr(Element, f"__r{_short}__", _fused_operator(_ufunc, reverse=True))
    setattr(Element, f"__i{_short}__", _fused_operator(_ufunc, inplace=True))
    setattr(Number, f"__{_short}__", lambda self, other: NotImplemented if isinstance(other, Element) else self._alone())
    setattr(Number, f"__r{_short}__", Number._alone)
for _short, _ufunc in {**COMPARISONS, "neg": "negative", "invert": "invert"}.items():        # no abs(x), no +x
    setattr(Element, f"__{_short}__", _fused_operator(_ufunc))
    setattr(Number, f"__{_short}__", Number._alone)


def fuse(function):
    """cupy.fuse: the function runs on stand-ins for its arrays, with all that CuPy cannot follow refused."""
    def kernel(*args):
        seen = [Element(x) if isinstance(x, ndarray) else Number(x) for x in args]
        result = function(Fusing, *seen)
        returned = () if result is None else result if type(result) is tuple else (result,)
        shape = np.broadcast_shapes(*(x.shape for x in args if isinstance(x, ndarray)))
        for x in (*returned, *(x for x in seen if isinstance(x, Element) and x._written)):
            if not isinstance(x, Element):
                raise TypeError(f"fuse: {function.__name__} returned a {type(x).__name__}; a kernel gives arrays, or nothing")
            if x._whole.shape != shape:     # a kernel makes and writes all its arrays in one shape
                raise TypeError(f"fuse: {function.__name__} gives an array of shape {x._whole.shape} among arrays of {shape}")
        whole = tuple(x._whole for x in returned)
        return whole if type(result) is tuple else whole[0] if whole else None
    return kernel


xp = Module(np)
xp.ndarray, xp.asarray, xp.asnumpy, xp.random.default_rng = ndarray, asarray, asnumpy, Generator
xp.array = lambda data, dtype=None, copy=True: asarray(data, dtype).copy()

DEVICE = backend.register(backend.Device("strict", xp, ndarray, asnumpy, fuse=fuse, blas=True))
