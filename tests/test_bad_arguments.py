"""Bad arguments of everything that is no op: for each a call that is fine, and what its arguments must not be.

Each is refused in one sentence, and none passes in silence.
"""

from math import inf, nan

import numpy as np
import pytest

import minitx as mx
from minitx import nn, ops
from minitx.clipping import clip_grad_norm
from minitx.data import (
    Vocabulary,
    bigram_bits,
    length_batches,
    load_corpus,
    mask_of,
    masked,
    pad,
    padding_share,
    pair_batch,
    read_text,
    sequential,
    windows,
)
from minitx.decoding import beam_search, greedy, select
from minitx.generation import generate
from minitx.models import Encoder, EncoderDecoder, MaskedLM, RecurrentLM, TransformerLM
from minitx.optim import SGD, Adam, AdamW
from minitx.profiling import by_module
from minitx.schedules import warmup_cosine
from minitx.seq2seq import Seq2Seq
from minitx.training import evaluate, train

from .common import said

SOMEBODY = r"(device )?[\w.'\[\]<>]+( \w+)?"    # a function, a class or an op, in whose name an argument is refused


def ones(*shape, dtype="float32", **options):
    return mx.tensor(np.ones(shape, dtype), **options)


def weights(*shape):
    return ones(*shape, requires_grad=True)


MODEL, X, ROWS, STRICT = RecurrentLM(5, 2, 3), ones(2, 3, 4), np.ones((2, 3), int), ones(2, 3, 4, device="strict")
BATCH = ROWS, ROWS

SIZE = [0, -1, 2.5, "4", None, True, [2]]
NUMBER = ["x", None, [1.0], 1j, nan, inf, 10**400]
NOT_BELOW_0 = [*NUMBER, -0.5]
P = [*NOT_BELOW_0, 1.5]
FLOATS = ["float99", "int32", "complex64", 7, object]
TENSOR = [None, "x", 3.0, [[[1.0]]], np.ones((2, 3, 4)), ones(2, 3, 4, dtype="float64"), mx.tensor(ROWS), ones(2, 3, 5), STRICT]
SEQUENCES = [*TENSOR, X[0], X[0, 0, 0], X[None]]
IDS = [None, "x", 3, [[1]], ROWS * 1.0, ROWS + 9, -ROWS, ROWS > 0, mx.tensor(ROWS, device="strict")]
ROWS_OF_IDS = [*IDS, ROWS[0], ROWS[None]]
PARAMETERS = [None, 3, "x", [], [1.0], [None], MODEL, weights(1), {"w": weights(1)}, [ones(1)], [weights(1) * 2],
              [weights(1)] * 2]
TEXT = [None, 3, ["a"], b"ab"]
COUNTS = np.zeros(1, int)
STATES = ["x", 3, [], [None], ones(2, 2), ones(2), ones(1, 3, 2), ones(1, 2, 3), ones(1, 2, 2, dtype="float64"),
          mx.tensor([[[1]] * 2])]
ENDS = ["x", 3, [], [1], [1, 2, 3], [[1, 2]], [1.0, 2.0], [1, None], ["1", "2"], [1, 4], [-1, 3], [True, False],
        mx.tensor([0.5, 1.0]), np.array([4, 4]), {}]
PAIRS = Seq2Seq(5, 5, 2, 4)
LENGTHS = [None, "x", ROWS, [4, 4], [-1, 2], [1.5, 2], [1], [[1], [1]]]
NO_SIZE, FLAGS = [size for size in SIZE if size is not None], [None, 1, "yes"]
TURNS = ["halves", 3, [], dict(pairing="pairs"), dict(rotated=3), dict(rotated=6), dict(base=0), dict(stretch=-1.0),
         dict(size=2), dict(base="x")]
ENCODER_BLOCK = dict(norm=["none", None, []], normaliser=["batch", None, []], eps=NOT_BELOW_0, feed=["tanh", None, []],
                     dropout=P, dtype=FLOATS)
BLOCK = ENCODER_BLOCK | dict(M=[*NO_SIZE, 4], use_bias=FLAGS, rotary=TURNS)
PLACES = dict(positions=["absolute", None, []])
CACHES = ["x", 3, {}]
BIASES = ["x", 3, ROWS, np.ones((2, 2), "float32"), np.ones((3, 3))]
MASKED, TRANSLATOR = MaskedLM(5, 4, 2, 1, 8), EncoderDecoder(5, 4, 2, 1)
START = [None, 3, "x", [0.5], [[1]], [[1], [2, 3]]]
RAGGED = [None, 3, "x", [[0.5]], [3], [[[1]]], ["ab"]]


def uniform(ids, state):
    """A step of a model of four symbols that knows nothing."""
    return np.zeros((len(ids), 4)), state


CALLS = {
    # Modules, made and called
    "Linear": (nn.Linear, dict(D_in=3, D_out=2), dict(D_in=SIZE, D_out=SIZE, gain=NUMBER, dtype=FLOATS, dim=[1])),
    "Embedding": (nn.Embedding, dict(V=3, D=2), dict(V=SIZE, D=SIZE, std=NOT_BELOW_0, dtype=FLOATS)),
    "LayerNorm": (nn.LayerNorm, dict(D=3), dict(D=SIZE, eps=NOT_BELOW_0, dtype=FLOATS)),
    "RMSNorm": (nn.RMSNorm, dict(D=3), dict(D=SIZE, eps=NOT_BELOW_0, dtype=FLOATS)),
    "Dropout": (nn.Dropout, dict(p=0.5), dict(p=P)),
    "RNN": (nn.RNN, dict(D=3, H=2), dict(D=SIZE, H=SIZE, L=SIZE, gain=NUMBER, dtype=FLOATS, dropout=P, forget_bias=[1.0])),
    "GRU": (nn.GRU, dict(D=3, H=2), dict(D=SIZE, H=SIZE, L=SIZE, dtype=FLOATS, dropout=P, gain=[1.0], activation=["relu"])),
    "LSTM": (nn.LSTM, dict(D=3, H=2), dict(D=SIZE, H=SIZE, L=SIZE, forget_bias=NUMBER, dtype=FLOATS, dropout=P,
                                           activation=["relu"])),
    "MultiHeadAttention": (nn.MultiHeadAttention, dict(D=4, N=2), dict(
        D=[*SIZE, 5], N=[*SIZE, 3], M=[*NO_SIZE, 4], K=NO_SIZE, causal=FLAGS, cross=FLAGS, use_bias=FLAGS, rotary=TURNS,
        dropout=P, dtype=FLOATS, heads=[2])),
    "FeedForward": (nn.FeedForward, dict(D=4, F=8), dict(D=SIZE, F=SIZE, kind=["tanh", None, [], 1], use_bias=FLAGS,
                                                         dtype=FLOATS, dropout=[0.1])),
    "TransformerBlock": (nn.TransformerBlock, dict(D=4, N=2, F=8), dict(
        D=[*SIZE, 5], N=[*SIZE, 3], F=NO_SIZE, cross=FLAGS, causal=FLAGS, **BLOCK)),
    "RecurrentLM": (RecurrentLM, dict(V=5, D=2, H=3),
                    dict(V=SIZE, D=SIZE, H=SIZE, L=SIZE, cell=["elman", None, []], dropout=P, activation=["relu"],
                         bidirectional=[True])),
    "TransformerLM": (TransformerLM, dict(V=5, D=4, N=2, L=1, T=8),
                      dict(V=SIZE, D=SIZE, N=[*SIZE, 3], L=SIZE, T=SIZE, F=NO_SIZE, cell=["rnn"], tied=FLAGS, **PLACES,
                           **BLOCK | dict(rotary=[*TURNS, {}]))),
    "TransformerLM, turning": (lambda rotary: TransformerLM(5, 4, 2, 1, None, positions="rotary", rotary=rotary),
                               dict(rotary={}), dict(rotary=TURNS)),
    "Encoder": (Encoder, dict(V=5, D=4, N=2, L=1, T=8), dict(
        V=SIZE, D=SIZE, N=[*SIZE, 3], L=SIZE, T=SIZE, F=NO_SIZE, types=[-1, 2.5, "4", None], embedding_norm=FLAGS,
        causal=[True], rotary=[*TURNS, {}], **PLACES | dict(positions=[*PLACES["positions"], "alibi"]), **ENCODER_BLOCK)),
    "MaskedLM": (MaskedLM, dict(V=5, D=4, N=2, L=1, T=8), dict(V=SIZE, D=SIZE, N=[*SIZE, 3], L=SIZE, T=SIZE, tied=[True],
                                                               **PLACES, **ENCODER_BLOCK)),
    "EncoderDecoder": (EncoderDecoder, dict(V=5, D=4, N=2, L=1), dict(
        V=SIZE, D=SIZE, N=[*SIZE, 3], L=SIZE, T=SIZE, F=NO_SIZE, smoothing=P, dropout=P, norm=["none", None, []],
        feed=["tanh", None, []], dtype=FLOATS, positions=["rotary"])),
    "Cache": (nn.Cache, dict(T=4), dict(T=SIZE, blank=["x", 3, [1, 2], np.array([0.5]), np.array([[1]]), np.array([True])])),
    "a Linear": (nn.Linear(4, 2), dict(x=X), dict(x=TENSOR)),
    "an Embedding": (nn.Embedding(3, 2), dict(ids=ROWS), dict(ids=IDS)),
    "a LayerNorm": (nn.LayerNorm(4), dict(x=X), dict(x=TENSOR)),
    "a Dropout": (nn.Dropout(0.5), dict(x=X), dict(x=[None, "x", 3.0, [1.0], np.ones(3), mx.tensor([1, 2])])),
    "an RNN": (nn.RNN(4, 2), dict(x=X, state=ones(1, 2, 2)), dict(x=SEQUENCES, state=STATES, lengths=ENDS)),
    "a GRU": (nn.GRU(4, 2, 2, bidirectional=True), dict(x=X, state=ones(4, 2, 2), lengths=[3, 0]),
              dict(x=SEQUENCES, state=[*STATES, ones(1, 2, 2), ones(2, 2, 2)], lengths=ENDS)),
    "an LSTM": (nn.LSTM(4, 2), dict(x=X, state=(ones(1, 2, 2),) * 2, lengths=mx.tensor([1, 3])),
                dict(x=SEQUENCES, lengths=ENDS, state=[*STATES, ones(1, 2, 2), (ones(1, 2, 2),), (ones(1, 2, 2), None),
                                                          (ones(1, 2, 2),) * 3, (ones(1, 2, 2), ones(1, 2, 3))])),
    "a step": (MODEL.step, dict(ids=ROWS), dict(ids=ROWS_OF_IDS, state=[*STATES, ones(1, 2, 3)])),
    "load_torch": (nn.GRU(2, 1).load_torch, dict(state=nn.GRU(2, 1).to_torch()), dict(state=[
        None, 3, [], "x", {}, nn.GRU(2, 1, 2).to_torch(), nn.GRU(3, 1).to_torch(), nn.GRU(2, 1, bidirectional=True).to_torch(),
        nn.RNN(2, 1).to_torch(), nn.GRU(2, 1).state_dict(), dict.fromkeys(nn.GRU(2, 1).to_torch()),
        dict.fromkeys(nn.GRU(2, 1).to_torch(), 1.0), nn.GRU(2, 1).to_torch() | dict(bias_hh_l0=np.array(["x"] * 3))])),
    "an attention": (nn.MultiHeadAttention(4, 2), dict(x=X), dict(
        x=SEQUENCES, mask=["x", 3, ROWS, np.ones((2, 2), bool)], bias=[*BIASES, ROWS > 0], memory=[X], cache=CACHES)),
    "an attention that turns": (nn.MultiHeadAttention(4, 2, rotary={}), dict(x=X), dict(
        x=SEQUENCES, positions=["x", 3.0, np.arange(3.0), np.arange(4), np.zeros((3, 3), int), [0, 1, 2]])),
    "an attention to a memory": (nn.MultiHeadAttention(4, 2, cross=True), dict(x=X, memory=ones(2, 5, 4)), dict(
        x=SEQUENCES, memory=[*SEQUENCES, ones(3, 5, 4)], mask=["x", 3, ROWS, np.ones((3, 3), bool)])),
    "a feed-forward network": (nn.FeedForward(4, 8), dict(x=X), dict(x=TENSOR)),
    "a block": (nn.TransformerBlock(4, 2), dict(x=X), dict(
        x=SEQUENCES, mask=["x", 3, ROWS], bias=BIASES, memory=[X], memory_mask=[ROWS > 0], cache=CACHES)),
    "a block with a memory": (nn.TransformerBlock(4, 2, cross=True), dict(x=X, memory=X), dict(
        x=SEQUENCES, memory=SEQUENCES, memory_mask=["x", 3, ROWS])),
    "a recurrent model": (MODEL, dict(ids=ROWS), dict(ids=ROWS_OF_IDS)),
    "a Transformer": (TransformerLM(5, 4, 2, 1, 8), dict(ids=ROWS), dict(ids=[*ROWS_OF_IDS, np.ones((1, 9), int)])),
    "an Encoder": (Encoder(5, 4, 2, 1, 8, types=2), dict(ids=ROWS, lengths=np.array([1, 3]), types=ROWS), dict(
        ids=[*ROWS_OF_IDS, np.ones((2, 9), int)], lengths=ENDS, types=[*ROWS_OF_IDS[1:], ROWS[:, :2]])),
    "a masked loss": (lambda ids, lengths, targets: MASKED.loss(ids, lengths, targets),
                      dict(ids=ROWS, lengths=np.array([1, 3]), targets=ROWS),
                      dict(ids=ROWS_OF_IDS, lengths=ENDS, targets=ROWS_OF_IDS)),
    "an EncoderDecoder": (TRANSLATOR, dict(source=ROWS, lengths=np.array([1, 3]), inputs=ROWS), dict(
        source=ROWS_OF_IDS, lengths=ENDS, inputs=[*ROWS_OF_IDS, ROWS[:1]])),
    "a loss of a translation": (lambda targets: TRANSLATOR.loss(ROWS, np.array([1, 3]), ROWS, targets), dict(targets=ROWS),
                                dict(targets=ROWS_OF_IDS)),
    "by_module": (lambda model, x: by_module(model, x), dict(model=nn.Linear(4, 2), x=X), dict(model=[None, 3, "x"], x=TENSOR)),
    "a loss": (MODEL.loss, dict(ids=ROWS, targets=ROWS), dict(ids=ROWS_OF_IDS, targets=ROWS_OF_IDS)),
    "Seq2Seq": (Seq2Seq, dict(V_source=5, V=5, D=2, H=4),
                dict(V_source=SIZE, V=SIZE, D=SIZE, H=[*SIZE, 3], L=SIZE, attention=["dot", None, []], cell=["elman", None, []],
                     dropout=P, dtype=FLOATS, gain=[1])),
    "a Seq2Seq": (PAIRS, dict(source=ROWS, lengths=[2, 3], inputs=ROWS),
                  dict(source=ROWS_OF_IDS, lengths=LENGTHS[1:], inputs=ROWS_OF_IDS)),
    "a loss of pairs": (PAIRS.loss, dict(source=ROWS, lengths=[2, 3], inputs=ROWS, targets=ROWS), dict(targets=ROWS_OF_IDS)),
    "load_state_dict": (nn.Linear(1, 1).load_state_dict, dict(state=nn.Linear(1, 1).state_dict()), dict(state=[
        None, 3, [], {}, dict(W=1, b=2), dict(W=np.ones((1, 1))), dict(W=np.ones((2, 1)), b=np.ones(1)),
        dict(W=np.ones((1, 1), complex), b=np.ones(1)), dict(W=np.ones((1, 1)), b=np.array(["x"]))])),
    "to": (nn.Linear(1, 1).to, dict(device="cpu"), dict(device=["gpu", 3, []], dtype=["int32", "x"])),

    # Optimisers and training
    "SGD": (SGD, dict(parameters=[weights(1)], lr=0.1),
            dict(parameters=PARAMETERS, lr=NOT_BELOW_0, momentum=NOT_BELOW_0, weight_decay=NOT_BELOW_0, nesterov=[True])),
    "Adam": (Adam, dict(parameters=[weights(1)]),
             dict(parameters=PARAMETERS, lr=NOT_BELOW_0, eps=NOT_BELOW_0, weight_decay=NOT_BELOW_0,
                  betas=[None, 0.9, (0.9,), (1, 0.9), (0.9, 1.0), (-0.1, 0.9), ("x", 0.9), (0.9, 2)])),
    "AdamW": (AdamW, dict(parameters=[weights(1)]), dict(parameters=PARAMETERS, lr=NOT_BELOW_0)),
    "a state": (SGD([weights(1)], 0.1).load_state_dict, dict(state=dict(counts=COUNTS)), dict(state=[
        None, {}, [], dict(counts=1), dict(counts=np.zeros(2, int)), dict(counts=np.zeros(1)), dict(counts=COUNTS, m=COUNTS)])),
    "clip_grad_norm": (clip_grad_norm, dict(parameters=[weights(1)], max_norm=1.0),
                       dict(parameters=[None, 3, "x", [1.0], weights(1), dict(w=1)], max_norm=["x", None, [], 0, -1, nan, 1j])),
    "warmup_cosine": (warmup_cosine, dict(peak=1.0, total=9, warmup=2, floor=0.1),
                      dict(peak=NOT_BELOW_0, total=[-1, 2.5, "x", None, 1], warmup=[-1, 10, 2.5, "x", None],
                           floor=[*NOT_BELOW_0, 2.0])),
    "train": (train, dict(model=MODEL, batches=[BATCH] * 9, optimizer=SGD(MODEL.parameters(), 0.1), steps=1),
              dict(model=[3, nn.Linear(1, 1)], optimizer=[3, "Adam"], steps=[-1, 1.5, "x", None, 10],
                   accumulate=[0, -1, 1.5, "x", None], on_nonfinite=["go", None], clip=[0, -1, "x", nan], schedule=[0.1, "x"],
                   after_step=[1], beta=[1],
                   batches=[[], [3], [(ROWS,)], [ROWS], [(ROWS, [1])], [(ROWS * 1.0, ROWS)], [(ROWS, ROWS + 9)]])),
    "evaluate": (evaluate, dict(model=MODEL, batches=[BATCH]),
                 dict(model=[3, None], batches=[[], [3], [(ROWS, [1])], [(ROWS + 9, ROWS)]])),
    "generate": (lambda **o: list(generate(**o)), dict(model=MODEL, prompt=[0, 1], count=2),
                 dict(model=[3, nn.Linear(1, 1)], prompt=[[], [9], [-1], [0.5], "ab", None, 3, [[1]], [[1], [2, 3]]],
                      count=[-1, 1.5, "x", None], temperature=NOT_BELOW_0, top_q=[1])),

    "greedy": (greedy, dict(step=uniform, state=None, start=[0, 1], stop=2, steps=3),
               dict(start=START, stop=[-1, 4, 1.5, "x", None], steps=SIZE, width=[2],
                    step=[lambda ids, state: (None, state), lambda ids, state: (np.zeros(4), state),
                          lambda ids, state: (np.zeros((3, 4)), state)])),
    "beam_search": (beam_search, dict(step=uniform, state=ROWS, start=[0, 1], stop=2, steps=3),
                    dict(start=START, state=["x", 3, [ROWS, 1.0]], stop=[-1, 4, 1.5, "x", None], steps=SIZE, width=SIZE,
                         alpha=NOT_BELOW_0, beams=[2])),
    "select": (select, dict(state=ROWS, rows=np.array([1, 0])), dict(state=["x", 3, [1.0], {"h": "x"}, object()])),

    # Data
    "pad": (pad, dict(sequences=[[1, 2], [3]]), dict(sequences=RAGGED, value=[1.5, "x", None])),
    "masked": (masked, dict(ids=ROWS, lengths=[1, 3], V=5, rng=np.random.default_rng(0), mask_id=4),
               dict(ids=[None, 3, "x", [1, 2], [[1], [2, 3]], ROWS * 0.5, ROWS + 9, -ROWS], V=[*SIZE, 1],
                    lengths=[None, 3, "x", [1], [1.5, 2], [-1, 2], [1, 4], [[1, 3]]], rng=[0, None],
                    mask_id=[-1, 5, 1.5, "x", None], share=P)),
    "mask_of": (mask_of, dict(lengths=np.array([1, 2]), T=2), dict(lengths=[None, "x", [1, 2]], T=[-1, 1.5, "x", None])),
    "pair_batch": (pair_batch, dict(sources=[[1], [2]], targets=[[1], [2]], start=0, stop=1),
                   dict(sources=[*RAGGED, [[1]]], targets=[*RAGGED, [[1]]], start=[-1, 1.5, "x", None],
                        stop=[-1, 1.5, "x", None])),
    "length_batches": (length_batches, dict(lengths=[3, 1, 2], B=2, rng=np.random.default_rng(0)),
                       dict(lengths=[None, 3, "x", [1.5], [-1], [[1], [2, 3]], [[[1]]]], B=SIZE, rng=[0, None],
                            pool=[0, -1, 1.5, "x"], budget=[0, -1, 1.5, "x"])),
    "padding_share": (padding_share, dict(lengths=[3, 1], batches=[[0, 1]]),
                      dict(lengths=[None, 3, "x", [1.5], [-1], [[1], [2, 3]]], batches=[*RAGGED, [[2]], [[-1]]])),
    "windows": (windows, dict(ids=range(30), B=2, T=3, rng=np.random.default_rng(0)),
                dict(ids=[[], [0.5] * 30, "text", None, 3, [[1], [2, 3]], range(6)], B=SIZE, T=SIZE, rng=[0, None],
                     steps=[-1, 1.5, "x"])),
    "sequential": (sequential, dict(ids=range(30), B=2, T=3),
                   dict(ids=[[], [0], [0.5] * 30, "x", None, [[1], [2, 3]]], B=SIZE, T=SIZE)),
    "Vocabulary": (Vocabulary, dict(characters="abc"), dict(characters=["", "aba", *TEXT])),
    "Vocabulary.of": (Vocabulary.of, dict(text="abc"), dict(text=["", *TEXT], min_count=[*SIZE, 9])),
    "encode": (Vocabulary("abc").encode, dict(text="ab"), dict(text=["abd", *TEXT], unknown=["replace", "skip", None])),
    "decode": (Vocabulary("abc").decode, dict(ids=[0, 1]),
               dict(ids=[[3], [-1], [0.5], "ab", None, 1, [[0], [0, 1]], ["a"], [True]])),
    "bigram_bits": (bigram_bits, dict(ids=[0, 1, 1], V=2),
                    dict(ids=[[], [0], [0, 2], [-1, 0], None, "x"], V=[0, 1, "x", None])),
    "load_corpus": (load_corpus, {}, dict(language=["de", None, 3, []])),
    "read_text": (read_text, dict(path=__file__), dict(path=[None, 3, []])),

    # Tensors
    "tensor": (mx.tensor, dict(data=[1.0]),
               dict(data=[None, "x", {}, object(), [1j], [[1], [2, 3]], [None], 10**400, [[1], 2]],
                    dtype=["float99", "complex64", "object", "str"], device=["gpu", 3, ["cpu"]], like=[1])),
    "a tensor of bytes": (lambda data: mx.tensor(data, dtype="uint8"), dict(data=[1.0, 255]),
                          dict(data=[[1.5], [256], [-1], [nan], inf, ones(1) / 2, ones(1, device="strict") * -1])),
    "a tracked tensor": (lambda data: mx.tensor(data, requires_grad=True), dict(data=[1.0]), dict(data=[[1], [True]])),
    "Tensor": (mx.Tensor, dict(array=np.ones(2)), dict(array=[None, [1.0], 3, "x", X])),
    "zeros": (lambda n, like: mx.zeros(n, like=like), dict(n=2, like=X),
              dict(n=[-1, 0.5, "x", None], like=[None, 3, np.ones(2)])),
    "to another device": (X.to, dict(device="strict"), dict(device=["gpu", 3, [], None])),
    "assign_": (weights(2, 2).assign_, dict(value=[[1, 2], [3, 4]]),
                dict(value=[None, "x", 3, [1, 2], [[1], [2, 3]], {}, [[1j, 2], [3, 4]], np.ones((2, 2)),
                            ones(2, 2, dtype="float64"), ones(2, 2, device="strict")])),
    "backward": (lambda seed: (weights(2) * 2).backward(seed), dict(seed=[1.0, 2.0]),
                 dict(seed=["x", [1], [[1], [2, 3]], np.ones(2), {}, 1.0, ones(2, device="strict")])),
    "gradcheck": (lambda fn, x, **o: mx.gradcheck(fn, x, **o), dict(fn=ops.tanh, x=np.ones(2)),
                  dict(fn=[3, None, "tanh"], x=[None, "x", [1.0], ROWS, np.ones(2, complex), object()],
                       step=[0, *NOT_BELOW_0], rtol=NOT_BELOW_0, atol=NOT_BELOW_0, seed=[-1, "x", 0.5], axis=[0])),
    "seed": (mx.seed, dict(number=0), dict(number=[-1, "x", None, 1.5])),
    "<": (lambda y: ones(2, 3) < y, dict(y=1), dict(y=["x", None, {}, np.ones(4), ones(4), ones(1, device="strict")])),
    "sum": (ones(2, 3).sum, {}, dict(dim=[1], axis=[5, "x", (0, 0), 0.5, ones(1)], keepdim=[True])),
    "reshape": (lambda shape: ones(2, 3).reshape(shape), dict(shape=(3, 2)), dict(shape=[(4,), "x", 1.5, (-1, -1), None])),
    "[]": (lambda index: ones(2, 3)[index], dict(index=0),
           dict(index=[5, (0, 9), "x", 0.5, [0.5], {}, np.array([5]), [9], (0, 0, 0), 1j, ([0, 1], [0, 1, 1]), mx.tensor([5]),
                       mx.tensor([0.5])])),
    "[], where ids wrap": (lambda index: STRICT[index], dict(index=0),
                           dict(index=[5, (0, 9), "x", [9], [-9], (slice(None), [3]), (..., [0, 4]), ([0], [-4]),
                                       mx.tensor([2], device="strict"), (None, mx.tensor([2], device="strict"))])),
}


@pytest.mark.parametrize("function, fine, bad", CALLS.values(), ids=CALLS)
def test_every_bad_argument_is_refused(function, fine, bad, record_property):
    function(**fine)
    calls = [(name, value) for name, values in bad.items() for value in values]
    record_property("bad calls", {"tried": len(calls), "refused": len(calls)})
    for name, value in calls:
        try:
            function(**{**fine, name: value})
        except Exception as error:
            said(error, SOMEBODY)
        else:
            pytest.fail(f"{name} = {value!r} was not refused")
