"""Samples of softmax and its losses, of layers and of attention. Masked rows, ignored targets and huge scores are here."""

import numpy as np

from .harness import call, samples_of


@samples_of("softmax", "log_softmax")
def softmax(rng):
    for shape, axis in [((2, 5), -1), ((4,), 0), ((3, 2), 0), ((2, 3, 4), 1), ((2, 3, 2, 2), -2), ((3, 1), -1),
                        ((1,), 0), ((0, 3), -1), ((2, 0), 1)]:
        yield call(rng.standard_normal(shape), axis=axis)
    yield call(rng.standard_normal((2, 2, 3)))
    yield call(np.array([[1000.0, 999, 1001], [-1000, -1001, -1002]]))
    yield call(np.array([[0.5, 1.5], [-np.inf, -np.inf]]))


@samples_of("softmax")
def softmax_of_masked_scores(rng):
    yield from softmax(rng)
    yield call(np.array([[0, np.log(3), -np.inf], [-np.inf, 2, -np.inf], [-np.inf] * 3]))


@samples_of("cross_entropy")
def cross_entropy(rng):
    def rows(*shape):
        return rng.standard_normal(shape), rng.integers(0, shape[-1], shape[:-1])

    yield call(*rows(3, 5))
    for reduction in ("mean", "sum", "none"):
        logits, targets = rows(2, 3, 7)
        some, none = np.where(targets == targets[0, 0], -100, targets), np.full_like(targets, -1)
        yield call(logits, targets, reduction=reduction)
        yield call(logits, some, reduction=reduction, label_smoothing=0.3)
        yield call(logits, np.where(some == -100, 255, some), reduction=reduction, ignore_index=255)
        yield call(logits, targets, reduction=reduction, ignore_index=int(targets[1, 1]))      # a class of its own
        yield call(logits, none, reduction=reduction, ignore_index=-1, label_smoothing=0.1)
        yield call(np.zeros((0, 3)), np.zeros(0, int), reduction=reduction)
    yield call(*rows(4))
    yield call(*rows(2, 1, 2, 3), label_smoothing=1.0)
    yield call(rng.standard_normal((3, 1)), np.array([0, -100, 0]), label_smoothing=0.2)
    yield call(rng.standard_normal((3, 2)), np.array([1, 1, 0], "int32"))
    yield call(np.array([[1000.0, 1001, 999], [-1001, -1000, -1000]]), np.array([2, 0]), label_smoothing=0.1)
    yield call(np.array([[0.5, -np.inf, 1.0], [0.0, 1.0, 2.0]]), np.array([0, 1]))             # a class ruled out


@samples_of("linear")
def linear(rng):
    for x, D, O in [((2, 3), 3, 4), ((3,), 3, 2), ((2, 2, 3), 3, 1), ((2, 1, 2, 5), 5, 2), ((1, 1), 1, 1),
                    ((0, 3), 3, 2), ((2, 0), 0, 3)]:
        yield call(rng.standard_normal(x), rng.standard_normal((D, O)), rng.standard_normal(O))
        yield call(rng.standard_normal(x), rng.standard_normal((D, O)))
    yield call(rng.standard_normal((2, 3)), rng.standard_normal((3, 2)), None)


@samples_of("layer_norm")
def layer_norm(rng):
    def parameters(D):
        return rng.standard_normal(D), rng.standard_normal(D)

    for shape, eps in [((2, 5), 1e-5), ((4,), 1e-5), ((2, 3, 3), 1e-2), ((2, 1, 2, 7), 0.5), ((3, 1), 0.1),
                       ((0, 3), 1e-5), ((1, 2), 1e-3)]:
        yield call(rng.standard_normal(shape), *parameters(shape[-1]), eps=eps)
    yield call(100 + rng.standard_normal((2, 4)), *parameters(4))
    yield call(np.full((2, 3), 3.7), *parameters(3), eps=0.1)                                  # rows without spread


@samples_of("rms_norm")
def rms_norm(rng):
    for shape, eps in [((2, 5), 1e-6), ((4,), 1e-6), ((2, 3, 3), 1e-2), ((2, 1, 2, 7), 0.5), ((3, 1), 0.1), ((0, 3), 1e-6)]:
        yield call(rng.standard_normal(shape), rng.standard_normal(shape[-1]), eps=eps)
    yield call(rng.standard_normal((2, 3)), rng.standard_normal(3))
    yield call(np.zeros((2, 3)), rng.standard_normal(3), eps=0.1)                              # rows without length
    yield call(rng.standard_normal((2, 3)), rng.standard_normal(3), eps=0.0)


@samples_of("embedding")
def embedding(rng):
    for ids, V, D in [([[1, 1, 3], [0, 1, 3]], 4, 2), (2, 3, 2), ([0], 1, 1), ([4, 4, 4, 4], 5, 3), ([[[0], [2]]], 3, 1),
                      ([[[[1, 0]]]], 2, 2)]:
        yield call(np.array(ids), rng.standard_normal((V, D)))
    yield call(np.array([1, 0, 1], "int32"), rng.standard_normal((2, 3)))
    yield call(np.array([99, 1], "uint8"), rng.standard_normal((100, 3)))                      # 99 · 3 is no uint8
    yield call(np.repeat([7, 104, 103, 0], [1, 9, 3, 2])[::2], rng.standard_normal((105, 1)))  # many symbols
    yield call(np.zeros((2, 0), int), rng.standard_normal((3, 2)))


@samples_of("dropout")
def dropout(rng):
    for shape, keep, p in [((2, 3), (2, 3), 0.3), ((5,), (5,), 0.0), ((2, 3, 4), (2, 1, 4), 0.5),
                           ((2, 2, 3, 2), (3, 1), 0.25), ((), (), 0.1), ((1,), (1,), 0.5), ((0, 3), (3,), 0.5)]:
        yield call(rng.standard_normal(shape), rng.random(keep) >= p, p=p)
    yield call(rng.standard_normal((2, 2)), np.array([[True, False], [False, True]]), p=1.0)   # zeros, whatever is kept


@samples_of("attention", "textbook_attention")
def attention(rng):
    def qkv(B, N, Tq, Tk, K, Kv, M=None):
        return [rng.standard_normal((B, heads, *rest)) for heads, rest in ((N, (Tq, K)), (M or N, (Tk, K)), (M or N, (Tk, Kv)))]

    def mask(*shape):
        return rng.random(shape) < 0.6

    yield call(*qkv(1, 2, 3, 5, 4, 2), mask(2, 3, 5), causal=True)
    for Tq, Tk in [(3, 3), (3, 5), (4, 2), (1, 4), (1, 1)]:
        yield call(*qkv(1, 2, Tq, Tk, 3, 2), causal=True)
    yield call(*qkv(2, 2, 3, 5, 1, 3))
    yield call(*qkv(2, 1, 2, 3, 3, 1), None, scale=0.7)
    yield call(*qkv(2, 2, 2, 3, 2, 2), np.array([[False, False, False], [True, False, True]]))  # a query without a key
    yield call(*qkv(2, 2, 2, 3, 2, 2), mask(2, 1, 1, 3), scale=1.5)
    yield call(*qkv(2, 2, 2, 3, 2, 2), mask(2, 2, 2, 3), causal=True, scale=-1)
    yield call(*qkv(1, 1, 2, 3, 2, 2), np.zeros((2, 3), bool))
    yield call(*qkv(1, 1, 2, 3, 2, 2), scale=0.0)                                              # all weights are equal
    for sizes in [(0, 2, 2, 3, 2, 2), (1, 1, 0, 3, 2, 2), (1, 1, 2, 0, 2, 2)]:
        yield call(*qkv(*sizes))
        yield call(*qkv(*sizes), mask(1, 1), causal=True)
    q, k = np.array([[40.0, 2], [40, -1]]), np.array([[40.0, 0], [40, 1], [40, -1]])
    for allowed in ((), (np.array([True, False, True]),)):                                     # scores near 800: exp = inf
        yield call(q[None, None], k[None, None], rng.standard_normal((1, 1, 3, 2)), *allowed, scale=0.5)
    for N, M in ((4, 2), (3, 1), (6, 3)):                                                      # heads that share keys
        yield call(*qkv(2, N, 2, 3, 2, 3, M), mask(2, N, 2, 3), causal=True)
    for shape in ((2, 2, 2, 3), (2, 1, 3), (2, 3), (2, 2, 1, 3), (1,)):                        # every way to broadcast
        yield call(*qkv(2, 2, 2, 3, 2, 2), None, rng.standard_normal(shape))
    yield call(*qkv(1, 4, 3, 3, 2, 2, 2), mask(3, 3), rng.standard_normal((4, 3, 3)), causal=True)
    yield call(*qkv(1, 1, 2, 3, 2, 2), None, np.array([[0.0, -np.inf, 1.0], [-np.inf] * 3]))   # a mask that is added
    for p in (0.4, 0.0, 1.0):
        yield call(*qkv(2, 2, 2, 3, 2, 2), mask(2, 3), None, mask(2, 2, 2, 3), p=p)
    yield call(*qkv(1, 4, 2, 3, 2, 2, 2), None, rng.standard_normal((2, 3)), mask(1, 4, 2, 3), p=0.25)
    yield call(*qkv(1, 1, 2, 3, 2, 2), None, None, mask(1, 1, 2, 3))                           # nothing is scaled up
    yield call(*qkv(1, 3, 3, 2, 1, 2), causal=True)                                            # the first query sees nothing
    yield call(*qkv(1, 2, 3, 1, 2, 2), causal=True)                                            # nor do all but the last


@samples_of("flash_attention")
def flash_attention(rng):
    """Those of attention that drop nothing, in one tile; then tiles that do not divide the lengths."""
    for sample in attention(rng):
        if "p" not in sample.static and len(sample.args) < 6:
            yield sample
            yield call(*sample.args, **sample.static, tile=2)

    def qkv(B, N, M, Tq, Tk):
        return [rng.standard_normal((B, heads, *rest)) for heads, rest in ((N, (Tq, 2)), (M, (Tk, 2)), (M, (Tk, 3)))]

    for Tq, Tk in [(7, 7), (6, 6), (4, 9), (9, 4), (1, 7), (7, 1)]:                            # several borders
        for causal in (False, True):
            yield call(*qkv(1, 2, 2, Tq, Tk), causal=causal, tile=3)
    yield call(*qkv(1, 2, 2, 2, 2), rng.random((2, 2)) < 0.7, rng.standard_normal((2, 2)), tile=1)
    yield call(*qkv(2, 4, 2, 5, 7), rng.random((2, 1, 5, 7)) < 0.5, rng.standard_normal((4, 1, 7)), causal=True, tile=3)
    yield call(*qkv(1, 2, 1, 5, 7), rng.random((5, 1)) < 0.7, rng.standard_normal((5, 1)), scale=-0.8, tile=4)
    for B, N, M in (2, 6, 3), (3, 2, 2):                                                       # more heads than go together
        yield call(*qkv(B, N, M, 3, 4), rng.random((B, N, 1, 4)) < 0.7, causal=True, tile=2)
        yield call(*qkv(B, N, M, 3, 4), None, rng.standard_normal((B, N, 1, 4)))
    yield call(*qkv(1, 2, 2, 3, 4), None, np.array([[800.0], [-800.0], [0.0]]))                # what makes scores too large
    q, k, v = np.array([[[[1.0], [-2.0]]]]), np.array([[[[1.0], [2.0], [-1.0]]]]), rng.standard_normal((1, 1, 3, 1))
    yield call(1000 * q, k, v, scale=-1.0)
    yield call(q, k, v, scale=2000.0)
    rising, falling = np.arange(0, 4000, 500.0), np.arange(0, -4000, -500.0)
    for scores in (rising, falling):
        yield call(np.ones((1, 1, 2, 1)), scores.reshape(1, 1, 8, 1), rng.standard_normal((1, 1, 8, 2)), tile=3)
    late = np.arange(6) > 3                                                                    # the first tile is empty
    yield call(*qkv(1, 1, 1, 3, 6), late, tile=2)
    yield call(*qkv(1, 1, 1, 3, 6), None, np.where(late, 0.0, -np.inf), tile=2)


@samples_of("rotary")
def rotary(rng):
    yield call(rng.standard_normal((2, 3, 4, 6)), np.arange(4))
    yield call(rng.standard_normal((2, 3, 4, 6)), np.array([[0, 1, 2, 3], [7, 50, 3, 900]]), pairing="neighbours")
    yield call(rng.standard_normal((2, 1, 3, 5)), np.arange(5, 8), rotated=4, base=100, stretch=2.0)
    yield call(rng.standard_normal((1, 2, 3, 5)), np.arange(3), rotated=2, pairing="neighbours", stretch=0.5)
    yield call(rng.standard_normal((1, 2, 3, 2)), np.array([[5], ]), base=3.0)                 # one place for all
    yield call(rng.standard_normal((1, 1, 1, 4)), np.array([-3]))
    for shape in ((0, 2, 3, 4), (2, 2, 0, 4), (1, 1, 2, 0)):
        yield call(rng.standard_normal(shape), np.arange(shape[2]))
    yield call(rng.standard_normal((1, 1, 2, 3)), np.arange(2), rotated=0)


@samples_of("additive_attention")
def additive_attention(rng):
    def qkvw(B, Tq, Tk, A, D):
        return [rng.standard_normal(shape) for shape in ((B, Tq, A), (B, Tk, A), (B, Tk, D), (A,))]

    def mask(*shape):
        return rng.random(shape) < 0.6

    yield call(*qkvw(2, 3, 5, 4, 2), mask(2, 3, 5))
    for sizes in [(2, 3, 5, 4, 2), (2, 1, 3, 3, 2), (3, 2, 1, 2, 3), (1, 1, 1, 1, 1)]:
        yield call(*qkvw(*sizes))
    yield call(*qkvw(2, 3, 4, 1, 3), None)
    for shape in [(2, 1, 4), (3, 4), (3, 1), (4,), (1, 3, 4), (2, 3, 1), ()]:                  # every way to broadcast
        yield call(*qkvw(2, 3, 4, 2, 2), np.asarray(mask(*shape)))
    yield call(*qkvw(2, 2, 3, 2, 2), np.array([[False, False, False], [True, False, True]]))   # a query without a key
    yield call(*qkvw(1, 2, 3, 2, 2), np.zeros((2, 3), bool))
    for sizes in [(0, 2, 3, 2, 2), (1, 0, 3, 2, 2), (1, 2, 0, 2, 2), (1, 2, 3, 0, 2), (1, 2, 3, 2, 0)]:
        yield call(*qkvw(*sizes))
        yield call(*qkvw(*sizes), mask(1, 1))
    q, k, v, w = qkvw(1, 2, 3, 2, 2)
    yield call(q, k, v, 1000 * w)                                                              # scores beyond exp
