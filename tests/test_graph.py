"""Work, span and paths equal their closed forms; the device "trace" computes as NumPy, and refuses what it cannot follow."""

import numpy as np
import pytest

import minitx as mx
from minitx import backend, graph, nn, ops, randomness
from minitx.graph.arrays import Traced, asarray
from minitx.graph.chains import Longest, Shortest, current, follow
from minitx.graph.library import DEVICE, LIBRARY
from minitx.models import RecurrentLM, TransformerLM

from . import samples as _samples  # noqa: F401  (enters the samples)
from .common import refused
from .harness import assert_close, run, samples, values_and_gradients

B, T, D, H, N, F = 2, 9, 6, 4, 2, 10
GATES = {"rnn": 1, "lstm": 4} | ({"gru": 3} if hasattr(ops, "gru") else {})
recurrences = pytest.mark.parametrize("name", GATES)
rng = np.random.default_rng(0)


def arrays(name, T=T):
    """What a recurrent op takes: x, its states, its weights."""
    states, width, biases = (2 if name == "lstm" else 1), GATES[name] * H, (2 if name == "gru" else 1)
    shapes = [(B, T, D), *[(B, H)] * states, (D, width), (H, width), *[(width,)] * biases]
    return [rng.standard_normal(shape) for shape in shapes]


def on_the_tape(name):
    """The cell of a recurrence, step by step: what `unroll` does, done by the tape."""
    cell, states = getattr(ops, f"{name}_cell"), 2 if name == "lstm" else 1

    def sequence(x, *rest):
        state, weights, hs = rest[:states], rest[states:], []
        for x_t in ops.unstack(x, axis=1):
            state = cell(x_t, *state, *weights)
            state = state if isinstance(state, tuple) else (state,)
            hs.append(state[0])
        return ops.stack(*hs, axis=1)

    return sequence


def forms(name):
    """One recurrence, written in three ways."""
    return [getattr(ops, name), ops.unroll(getattr(ops, f"{name}_cell")), on_the_tape(name)]


def distances(T):
    """t - s for positions s ≤ t, inf for the future."""
    t, s = np.indices((T, T))
    return np.where(s <= t, t - s, np.inf)


# Work and span


@recurrences
@pytest.mark.parametrize("T", [1, 2, 9])
def test_a_recurrence_has_T_products_in_a_row_each_way_however_it_is_written(name, T):
    """Forward the product x W waits for nothing, so h U of step 1 does not wait for it either: T, not T + 1."""
    work = GATES[name] * 2 * B * T * (D * H + H * H)
    for form in forms(name):
        assert graph.cost(form, *arrays(name, T)) == ((work, T), (2 * work, T))


def test_linear():
    x, W, b = rng.standard_normal((B, T, D)), rng.standard_normal((D, H)), rng.standard_normal(H)
    assert graph.cost(ops.linear, x, W, b) == ((2 * B * T * D * H, 1), (4 * B * T * D * H, 1))
    assert graph.cost(nn.Linear(D, H), x.astype("float32")).forward.span == 1
    assert graph.cost(lambda x, W: ops.linear(ops.linear(x, W), W), x, rng.standard_normal((D, D))).backward.span == 2


@pytest.mark.parametrize("K, Kv", [(3, 3), (3, 5)])
def test_attention(K, Kv):
    Tk = T + 2
    q, k, v = (rng.standard_normal((B, N, *shape)) for shape in ((T, K), (Tk, K), (Tk, Kv)))
    work = 2 * B * N * T * Tk * (K + Kv)
    assert graph.cost(ops.attention, q, k, v) == ((work, 2), (2 * work, 2))
    for options in {"causal": True}, {"mask": np.eye(T, Tk, dtype=bool)}:
        assert graph.cost(ops.attention, q, k, v, **options) == ((work, 2), (2 * work, 2)), "masked scores are computed too"


@pytest.mark.parametrize("T", [1, 5, 40])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_transformer_block_has_six_products_in_a_row_at_any_length(T, norm):
    """q k v, scores, weighted average, output; up and down."""
    block = nn.TransformerBlock(D, N, F, norm=norm, causal=True)
    work = 2 * B * T * (4 * D * D + 2 * D * F) + 4 * B * T * T * D
    assert graph.cost(block, np.ones((B, T, D), "float32")) == ((work, 6), (2 * work, 6))


@pytest.mark.parametrize("L", [1, 3])
def test_layers_of_recurrences_work_in_parallel_those_of_blocks_one_after_the_other(L):
    """Layer 2 starts when layer 1 has made its first state, so a stack costs one product for each layer more, not T."""
    ids = rng.integers(0, 7, (B, T))
    for model, span in (RecurrentLM(7, D, H, L, cell="lstm"), T + L - 1 + 1), (TransformerLM(7, D, N, L, T), 6 * L + 1):
        found = graph.cost(model.loss, ids, ids)
        assert found.forward.span == found.backward.span == span
        assert found.backward.work == 2 * found.forward.work


def test_work_is_what_the_profile_counts():
    ids = rng.integers(0, 7, (B, T))
    for model in RecurrentLM(7, D, H, 2, cell="lstm"), TransformerLM(7, D, N, 2, T):
        with mx.profile() as profile:
            model.loss(ids, ids).backward()
        found = graph.cost(model.loss, ids, ids)
        assert found.forward.work + found.backward.work == sum(row.flops for row in profile.rows.values()) > 0


def test_the_way_back_counts_only_what_it_adds():
    """Forward a row of 5 products; backward one that uses the last of them."""
    def function(x, W, V):
        for _ in range(5):
            x = (x.detach() @ W.detach()).detach()
        return x @ V

    x, W = rng.standard_normal((2, 3)), rng.standard_normal((3, 3))
    found = graph.cost(function, x, W, W)
    assert (found.forward.span, found.backward.span, found.backward.work) == (6, 1, 2 * 2 * 2 * 9)
    assert graph.cost(lambda x: (x.detach() * 2), x) == ((0, 0), (0, 0)), "nothing to go back to"


def test_a_cost_prints_as_a_table():
    rows = str(graph.Cost(graph.Products(1234, 5), graph.Products(2468, 6))).split("\n")
    assert [row.split() for row in rows[1:]] == [["forward", "1,234", "5"], ["backward", "2,468", "6"]]
    assert len({len(row) for row in rows}) == 1


# Paths


def test_a_signal_crosses_an_rnn_step_by_step():
    for form in forms("rnn"):
        np.testing.assert_array_equal(graph.paths(form, *arrays("rnn")), distances(T) + 1)


@pytest.mark.parametrize("name", sorted({"lstm", "gru"} & set(GATES)))
def test_gates_let_a_signal_pass_without_a_product_at_any_distance(name):
    """c_t = f c_{t-1} + …, and h_t = (1 - z) n + z h_{t-1}: the memory crosses by numbers that multiply it one by one."""
    for form in forms(name):
        np.testing.assert_array_equal(graph.paths(form, *arrays(name)), np.where(distances(T) < np.inf, 1, np.inf))
        steps = graph.paths(form, *arrays(name), operations=True)
        slopes = np.diff(steps[2:, 0])
        assert 1 <= slopes.min() == slopes.max() <= 3, "yet at every step there is an operation"


@pytest.mark.parametrize("L", [1, 2])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_transformer_is_crossed_in_one_attention_whatever_the_distance(L, norm):
    """v, weighted average, output; all other layers are passed on the residual stream. Staying in place costs nothing."""
    model = TransformerLM(7, 8, N, L, T, norm=norm, rng=np.random.default_rng(0))
    expected = np.where(distances(T) == 0, 0, np.where(distances(T) < np.inf, 3, np.inf))
    np.testing.assert_array_equal(graph.paths(model.body, model.embed(rng.integers(0, 7, (B, T)))), expected)
    np.testing.assert_array_equal(graph.paths(model, rng.integers(0, 7, (B, T))), expected + 1)


def test_from_ids_to_logits_through_two_layers():
    model = RecurrentLM(7, D, H, 2, cell="rnn")
    np.testing.assert_array_equal(graph.paths(model, rng.integers(0, 7, (B, T))), distances(T) + 3)


def test_without_a_mask_every_position_is_in_reach():
    block = nn.TransformerBlock(8, N, rng=np.random.default_rng(0))
    found = graph.paths(block, rng.standard_normal((1, T, 8)).astype("float32"))
    assert (found == 3 * (1 - np.eye(T))).all()


@pytest.mark.parametrize("hidden", [-np.inf, -1e9])
def test_a_mask_that_is_added_to_the_scores_hides_the_future_too(hidden):
    def attention(x, mask):
        scores = x @ x.transpose(0, 2, 1) + mask
        return ops.softmax(scores) @ x

    mask = np.where(np.tri(T, dtype=bool), 0, hidden)
    found = graph.paths(attention, rng.standard_normal((B, T, D)), mask)
    np.testing.assert_array_equal(found, np.where(distances(T) < np.inf, 1, np.inf))


def test_zeros_are_no_links_but_span_counts_them():
    W = np.diag([1.0, 0.0])
    x = np.zeros((1, 2, 2))
    x[0, 0, 1] = x[0, 1, 0] = 1                                              # what position 0 has, W takes away
    np.testing.assert_array_equal(graph.paths(ops.matmul, x, W), [[np.inf, np.inf], [np.inf, 1]])
    assert graph.cost(ops.matmul, x, 0 * W).forward.span == 1
    np.testing.assert_array_equal(graph.paths(lambda x: ops.relu(-ops.abs(x)), x), np.full((2, 2), np.inf))


def test_positions_that_are_fewer_or_more_than_those_that_went_in():
    x = rng.standard_normal((B, T, D))
    ends = graph.paths(lambda x: x[:, -2:] * 2, x)
    assert ends.shape == (2, T) and (np.isfinite(ends) == np.eye(T)[-2:]).all()


# What may be measured, and how


def test_a_model_is_measured_without_being_changed():
    model = TransformerLM(7, D, N, 1, T, dropout=0.5)
    ids = rng.integers(0, 7, (B, T))
    model.loss(ids, ids).backward()
    before = [(p, p.array, p.grad.copy()) for p in model.parameters()]
    mx.seed(3)
    assert graph.cost(model.loss, ids, ids) == graph.cost(lambda m, ids: m.loss(ids, ids), model, ids)
    graph.paths(model, ids)
    assert model.training and randomness.stream().random() == np.random.default_rng(3).random(), "no draw for dropout"
    for p, (same, array, grad) in zip(model.parameters(), before, strict=True):
        assert p is same and p.array is array and (p.grad == grad).all()
    assert current.get().work == 0, "and nothing is left over"


def test_inputs_in_lists_and_dicts_and_outputs_in_tuples():
    x = rng.standard_normal((2, 3, 3)).astype("float32")

    def function(parts, *, scale):
        return (parts["a"][0] @ parts["b"]) * scale, [parts["b"]]

    found = graph.cost(function, {"a": [x], "b": mx.tensor(x)}, scale=2)
    assert found == ((2 * 2 * 27, 1), (4 * 2 * 27, 1))


def test_what_cannot_be_measured_is_refused():
    x, model = np.ones((2, 3)), nn.Linear(3, 3, dtype="float64")
    refused(TypeError, lambda: graph.cost(lambda x: 1.0, x), "cost: the function returned a float", "expected a Tensor")
    refused(TypeError, lambda: graph.cost(lambda x: model(x), x), "linear: arguments of different devices", "x is trace")
    refused(TypeError, lambda: graph.paths(3, x), "paths: function is a int", "expected a Module")
    with mx.no_grad():
        refused(RuntimeError, lambda: graph.cost(ops.exp, x), "cost: called under no_grad()")
    refused(ValueError, lambda: graph.paths(ops.exp, np.ones(3)), "paths: x has shape (3,)", "(B, T)")
    refused(ValueError, lambda: graph.paths(ops.exp, np.ones((0, 3))), "paths: x has shape (0, 3)", "B > 0")
    refused(TypeError, lambda: graph.paths(ops.exp, [[1, 2]]), "paths: x is a list", "np.array(ids)")
    refused(ValueError, lambda: graph.paths(ops.sum, x), "paths: the function returned shape ()", "(B, T, ...)")


# The device


@pytest.mark.parametrize("op, sample", [pytest.param(op, sample, id=f"{op.name}-{k}")
                                        for op in mx.OPS.values() for k, sample in enumerate(samples(op.name))])
@pytest.mark.parametrize("chains", [Longest, lambda: Shortest(3)], ids=["longest", "shortest"])
def test_every_op_computes_on_it_as_on_numpy(op, sample, chains):
    with follow(chains()):
        forward = run(op, sample.on("trace"))
        traced = [*forward.outputs, *forward.gradients(forward.random_dys())]
    assert_close([x if x is None else x.value for x in traced], values_and_gradients(op, sample), 1e-13)


@pytest.fixture
def x():
    """(2, 3); element (i, j) has the chain 10 i + j."""
    with follow(Shortest(1)):
        x = asarray(np.arange(1.0, 7).reshape(2, 3))
        x.chain[...] = np.array([[0, 1, 2], [10, 11, 12]])[..., None]
        yield x


RULES = {       # what is computed, and the chains of the result
    "x * 2": [[0, 1, 2], [10, 11, 12]],
    "1 - x[0]": [np.inf, 1, 2],                                              # 1 - 1 is 0
    "x[:, :1] + x": [[0, 0, 0], [10, 10, 10]],
    "xp.maximum(x[0], x[1])": [10, 11, 12],                                  # the winners
    "xp.minimum(x[0], x[1])": [0, 1, 2],
    "xp.maximum(x, 4)": [[np.inf, np.inf, np.inf], [10, 11, 12]],            # at a tie both
    "xp.minimum(x, x[:, :1] * 2)": [[0, 0, 0], [10, 11, 12]],
    "x @ x.T": [[1, 1], [1, 11]],
    "x @ x[1]": [1, 11],
    "x[0] @ x[1]": 1,
    "x[0] @ x.T": [1, 1],
    "xp.tensordot(x[:, :2, None], xp.ones((2, 1, 4)), 2)": [[1] * 4, [11] * 4],
    "x.T": [[0, 10], [1, 11], [2, 12]],
    "x.reshape(3, 2)": [[0, 1], [2, 10], [11, 12]],
    "x[1, ::-1]": [12, 11, 10],
    "x[1, 2]": 12,
    "x[xp.asarray(np.arange(6).reshape(2, 3) > 3)]": [11, 12],
    "x[xp.asarray([1, 1])]": [[10, 11, 12]] * 2,
    "x.take(xp.asarray([2]), axis=1)": [[2], [12]],
    "xp.take_along_axis(x, xp.asarray([[2], [0]]), 1)": [[2], [10]],
    "x.sum()": 0,
    "x.sum(1)": [0, 10],
    "x.sum((0, 1), keepdims=True)": [[0]],
    "x.max(0)": [10, 11, 12],                                                # the winners
    "x.min(-1)": [0, 10],
    "xp.cumsum(x[:, ::-1], 1)": [[2, 1, 0], [12, 11, 10]],
    "xp.where(xp.asarray([True, False, True]), x, 0)": [[0, np.inf, 2], [10, np.inf, 12]],
    "xp.where(x > 3, 1, 2)": [[0, 1, 2], [10, 11, 12]],                      # it depends on the condition
    "xp.concatenate([x[:1], xp.ones((1, 3))])": [[0, 1, 2], [np.inf] * 3],
    "xp.stack([x[0], x[1]], 1)": [[0, 10], [1, 11], [2, 12]],
    "xp.split(x, 3, axis=1)[1]": [[1], [11]],
    "xp.broadcast_to(x[0], (2, 3))": [[0, 1, 2]] * 2,
    "xp.zeros_like(x)": [[np.inf] * 3] * 2,
    "x.astype('float32').astype(int)": [[0, 1, 2], [10, 11, 12]],
    "xp.clip(x, 2, 5)": [[np.inf, 1, 2], [10, 11, np.inf]],
    "next(iter(x))": [0, 1, 2],
}


@pytest.mark.parametrize("code", RULES)
def test_chains_go_where_the_numbers_go(x, code):
    y = eval(code, {"x": x, "xp": LIBRARY, "np": np})
    assert type(y) is Traced and type(backend.array_module(y)) is type(LIBRARY)
    np.testing.assert_array_equal(y.chain[..., 0], RULES[code])


def test_writing_writes_chains(x):
    xp, y = LIBRARY, LIBRARY.zeros((2, 3))
    view = y.reshape(3, 2)[:, 1]
    view[...] = x[0]
    assert y.chain[..., 0].tolist() == [[np.inf, 0, np.inf], [1, np.inf, 2]], "through a view"
    y += x
    assert y.chain[..., 0].tolist() == [[0, 0, 2], [1, 11, 2]]
    xp.copyto(y, 7.0, where=xp.asarray([True, False, False]))
    assert y.chain[..., 0].tolist() == [[np.inf, 0, 2], [np.inf, 11, 2]]
    xp.exp(x[1], out=y[0])
    assert y.chain[..., 0].tolist() == [[10, 11, 12], [np.inf, 11, 2]]
    xp.add.at(y, (xp.asarray([1, 1]), xp.asarray([0, 0])), x[0, 1:])
    assert y.chain[..., 0].tolist() == [[10, 11, 12], [1, 11, 2]] and y.value[1, 0] == 7 + 2 + 3


def test_an_id_that_depends_on_something_passes_it_on(x):
    ids, table = asarray(np.array([[2, 0]])), asarray(np.ones((3, 4)))
    ids.chain[...] = np.array([[[5], [6]]])
    assert table[ids].chain[0, :, 3, 0].tolist() == [5, 6]
    assert table.take(ids, axis=0).chain[0, :, 3, 0].tolist() == table.T.take(ids, axis=1).chain[3, 0, :, 0].tolist() == [5, 6]
    refused(TypeError, lambda: x[0][x[1] > 0], "no rule for this index")
    refused(TypeError, lambda: x.__setitem__(ids[0], 1.0), "no rule for writing")
    refused(TypeError, lambda: LIBRARY.add.at(x, ids[0], 1.0), "no rule for add.at")


REFUSED = {
    "xp.argsort(x)": "no rule for xp.argsort; say in minitx/graph/library.py",
    "xp.einsum('ij,kj->ik', x, x)": "no rule for xp.einsum",
    "xp.linalg.norm(x)": "no rule for xp.linalg",
    "xp.modf(x)": "no rule for xp.modf",
    "xp.add.reduce(x)": "no rule for add.reduce",
    "xp.tensordot(x, x, ([1], [1]))": "no rule for tensordot with axes",
    "np.exp(x)": "__array_ufunc__",
    "np.asarray(x)": "NumPy would lose the chains",
    "np.ones(3) * x": "move it to the device",
    "xp.where(np.ones(3, bool), x, 0)": "move it to the device",
    "xp.stack([x, np.ones((2, 3))])": "move it to the device",
    "xp.full(3, x[0, 0])": "NumPy would lose the chains",
    "xp.asarray([x[0, 0]])": "NumPy would lose the chains",
    "x.repeat(x[0].astype(int))": "NumPy would lose the chains",
    "x.sum(where=x > 1)": "__array_ufunc__",
    "float(x[0, 0])": "float takes numbers out",
    "int(x[0, 0])": "int takes numbers out",
    "x.tolist()": "tolist takes numbers out",
    "mx.Tensor(x).sum().item()": "item takes numbers out",
    "mx.Tensor(x).numpy()": "a move to another device takes numbers out",
    "xp.ix_(x[0])": "ix_ takes numbers out",
    "xp.take_along_axis(x, x.astype(int), 1)": "take_along_axis takes numbers out",
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_would_lose_a_chain_is_refused(x, code):
    with pytest.raises((TypeError, AttributeError), match="(?s)" + REFUSED[code].replace("(", r"\(")):
        eval(code, {"x": x, "xp": LIBRARY, "np": np, "mx": mx, "ops": ops})


def test_numbers_without_a_chain_may_leave(x):
    y = LIBRARY.ones((2, 2))
    assert y.tolist() == [[1, 1], [1, 1]] and float(y[0, 0]) == y[0, 0].item() == 1 and backend.to_host(y).sum() == 4
    assert bool(x[0, 0] > 0) and int((x > 0).sum()) == 6, "and to look is allowed, for checks"
    assert repr(x[0, :2]) == "Traced([1. 2.], chain=[0. 1.])"
    assert backend.device("trace") is DEVICE


def test_measuring_twice_side_by_side():
    """Each measurement has chains of its own; what one leaves behind does not disturb the next."""
    assert graph.cost(ops.rnn, *arrays("rnn")) == graph.cost(ops.rnn, *arrays("rnn"))
    with follow(Longest()) as outer:
        LIBRARY.ones((2, 3)) @ LIBRARY.ones((3, 4))
        inner = graph.cost(ops.rnn, *arrays("rnn", 3))
        assert inner.forward.span == 3 and outer.lap() == (48, 1) and outer.lap() == (0, 0)


def test_the_exact_gelu_passes_its_chain_on_though_numpy_has_no_erfc():
    class Net(mx.nn.Module):
        def __init__(self):
            self.inner = mx.nn.Linear(2, 2)

        def forward(self, x):
            return ops.gelu(self.inner(x), approximate="none")

    assert graph.cost(Net(), np.ones((1, 3, 2), "float32")).forward.span == 1
