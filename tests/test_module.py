"""Module: a tree of named parameters that moves, is saved and is loaded as a whole.

Read next: `test_nn.py`, the layers.
"""

import numpy as np

import minitx as mx
from minitx import init, nn, ops

from .common import every_device, leaf, refused

rng = np.random.default_rng(0)


class Tree(nn.Module):
    """Everything that a module can have as a part."""

    def __init__(self, **options):
        self.scale = init.constant(1, value=2.0, **options)
        self.blocks = [nn.Linear(3, 3, **options), nn.Linear(3, 3, bias=False, **options)]
        self.norm, self.name, self.nothing = nn.LayerNorm(3, **options), "tree", None
        self.inner = Branch(**options)

    def forward(self, x):
        for block in self.blocks:
            x = self.norm(block(x))
        return self.inner(x * self.scale)


class Branch(nn.Module):
    def __init__(self, **options):
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(3, 2, **options)

    def forward(self, x):
        return self.drop(self.last(x))


PATHS = ["scale", "blocks.0.W", "blocks.0.b", "blocks.1.W", "norm.gamma", "norm.beta", "inner.last.W", "inner.last.b"]


# The tree


def test_parameters_have_paths():
    tree = Tree()
    assert [path for path, _ in tree.named_parameters()] == PATHS
    assert dict(tree.named_parameters())["blocks.1.W"] is tree.blocks[1].W
    modules = ["", "blocks.0", "blocks.1", "norm", "inner", "inner.drop", "inner.last"]
    assert [path for path, _ in tree.named_modules()] == modules
    assert tree.count_parameters() == 1 + 12 + 9 + 6 + 8 == sum(p.size for p in tree.parameters())
    refused(NotImplementedError, lambda: nn.Module()(1), "Module: a Module needs a forward method")


def test_an_attribute_of_any_name_is_a_part():
    class Speech(nn.Module):
        def __init__(self):
            self.parts = [nn.Linear(2, 3)]

    assert [path for path, _ in Speech().named_parameters()] == ["parts.0.W", "parts.0.b"]
    assert "parts.0: Linear 9" in repr(Speech())


def test_a_parameter_in_two_places_is_one_parameter():
    tree = Tree()
    tree.blocks[1].W = tree.blocks[0].W
    assert [path for path, _ in tree.named_parameters()] == [p for p in PATHS if p != "blocks.1.W"]
    tree.to("strict")
    assert tree.blocks[1].W is tree.blocks[0].W and tree.blocks[0].W.device == "strict"
    x = leaf(np.ones((2, 2)))
    tied, apart = nn.Linear(2, 2, dtype="float64"), nn.Linear(2, 2, dtype="float64")
    apart.W.assign_(tied.W)
    grads = mx.gradients(ops.linear(tied(x), tied.W).sum())[tied.W]
    two = mx.gradients(ops.linear(tied(x), apart.W).sum())
    np.testing.assert_allclose(grads, two[tied.W] + two[apart.W])


def test_train_and_eval_reach_every_module():
    def modes():
        return {module.training for _, module in tree.named_modules()}

    tree = Tree()
    assert modes() == {True}
    assert tree.eval() is tree and modes() == {False}
    assert tree.train() is tree and modes() == {True}


def test_zero_grad_forgets():
    tree = Tree().eval()
    tree(mx.tensor(np.ones((1, 3), "float32"))).sum().backward()
    assert all(p.grad is not None for p in tree.parameters())
    tree.zero_grad()
    assert all(p.grad is None for p in tree.parameters())


def test_a_module_moves_to_a_device_and_to_a_dtype_in_place():
    tree = Tree().eval()
    x, before = rng.standard_normal((2, 3)).astype("float32"), list(tree.parameters())
    y = tree(mx.tensor(x))
    y.sum().backward()
    assert tree.to("strict") is tree
    assert all(a is b for a, b in zip(before, tree.parameters(), strict=True))
    assert all(p.device == "strict" and p.grad is None for p in before)
    assert np.array_equal(tree(mx.tensor(x, device="strict")).numpy(), y.numpy())
    for dtype in ("float16", "float64"):
        tree.to("cpu", dtype=dtype)
        z = tree(mx.tensor(x, dtype=dtype))
        assert {p.dtype for p in tree.parameters()} == {z.dtype} == {np.dtype(dtype)} and z.device == "cpu"
        z.sum().backward()
        assert {p.grad.dtype for p in tree.parameters()} == {np.dtype(dtype)}


@every_device
def test_state_makes_a_round_trip(device):
    mx.seed(0)
    tree, other = Tree().to(device), Tree(dtype="float64")
    state = tree.state_dict()
    assert list(state) == PATHS and all(type(a) is np.ndarray for a in state.values())
    other.load_state_dict(state)
    for (path, p), q in zip(tree.named_parameters(), other.parameters(), strict=True):
        p.assign_(p.array + 1)
        assert np.array_equal(q.array, state[path]) and q.dtype == "float64", "a copy, in the dtype of the module"
    tree.load_state_dict(other.state_dict())
    assert all(np.array_equal(a, state[path]) for path, a in tree.state_dict().items())


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_written():
    tree = Tree()
    before, state = tree.state_dict(), {path: a + 1 for path, a in tree.state_dict().items()}
    more = {**state, "blocks.2.W": np.zeros(3)}
    less = {path: a for path, a in state.items() if path != "norm.beta"}
    wide = {**state, "inner.last.b": np.zeros(5)}
    for wrong, *parts in ((more, "missing: none", "unknown: blocks.2.W"), (less, "missing: norm.beta", "unknown: none"),
                          (wide, "inner.last.b has shape (2,) here and (5,) in the saved state")):
        refused(ValueError, lambda wrong=wrong: tree.load_state_dict(wrong), "load_state_dict: ", *parts)
    assert all(np.array_equal(a, before[path]) for path, a in tree.state_dict().items())


def test_a_module_prints_as_a_tree_with_its_parameters():
    assert repr(mx.models.RecurrentLM(7, 2, 3, cell="rnn")) == """\
RecurrentLM 60
  tokens: Embedding 14  table (7, 2)
  recurrence: RNN 18
    layers.0: RNNLayer 18  W (2, 3), U (3, 3), b (3,)
    dropout: Dropout 0
  dropout: Dropout 0
  head: Linear 28  W (3, 7), b (7,)"""
