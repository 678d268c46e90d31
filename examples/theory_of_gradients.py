"""Theory next to measurement: what the Jacobians of a recurrence promise, and what the recorder sees on the way back.

    python examples/theory_of_gradients.py

A net reads T characters of a novel; a gradient starts at its last state and walks back. Three times, theory tells beforehand
how long it is after d steps:

    linear RNN      s^d                              exactly, when U is s times a rotation
    tanh RNN        between the least and the largest singular value of the product of d Jacobians, and in the long run
                    e^(λd), where λ is the largest Lyapunov exponent
    LSTM            the product of d forget gates, on the path along the memory; what else arrives came through h

The table puts both side by side, the picture draws them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import minitx as mx
from minitx import backend, theory
from minitx.data import Vocabulary, load_corpus, windows
from minitx.models import RecurrentLM

T, B, D, H = 100, 8, 32, 48
PATH = "recurrence.layers.0"
TANH_GAINS = (0.5, 1.0, 1.8, 2.5)
FORGET_BIASES = (0.0, 1.0, 3.0, 5.0)


def recorded(model: RecurrentLM, ids: Any) -> dict[str, np.ndarray]:
    """What the recurrence shows, (B, T, H) each, while a random gradient of length 1 for each sequence goes back from its end.
    """
    with mx.record(model) as log, backend.expecting_overflow():
        state = model.recurrence(model.embed(ids))[1]
        last = state if isinstance(state, tuple) else (state,)
        for_each = [direction(s.shape, s.device) for s in last]         # by h, and for an LSTM by c as well
        sum((s * d).sum() for s, d in zip(last, for_each, strict=True)).backward()
    return dict(log[PATH])


def direction(shape: tuple[int, ...], device: str) -> Any:
    """A random direction for each sequence, (1, B, H)."""
    d = np.random.default_rng(0).standard_normal(shape)
    return backend.to_device(d / np.linalg.norm(d, axis=-1, keepdims=True), device)


def build(V: int, cell: str, device: str, **options: Any) -> RecurrentLM:
    rng = np.random.default_rng(0)
    return RecurrentLM(V, D, H, cell=cell, rng=rng, dtype="float64", **options).to(device)


def typical(lengths: np.ndarray) -> np.ndarray:
    """The geometric mean of (B, T) over the sequences: growth rates are means of logarithms."""
    return np.exp(np.log(lengths).mean(0))


def slope(lengths: np.ndarray) -> float:
    """The growth rate per step back of (T) lengths, first step first, fitted to their logarithms."""
    d, seen = np.arange(len(lengths))[::-1], lengths > 0
    return float(np.polyfit(d[seen], np.log(lengths[seen]), 1)[0])


def linear(V: int, ids: Any, device: str) -> list[dict[str, Any]]:
    rows = []
    for s in (0.9, 1.0, 1.1):
        seen = recorded(build(V, "rnn", device, activation="linear", gain=s), ids)
        lengths = np.linalg.norm(seen["dh"], axis=-1)                                        # (B, T)
        promised = s ** np.arange(T - 1, -1, -1.0)
        rows.append({"net": f"linear RNN, s = {s}", "theory": float(np.log(s)), "measured": slope(typical(lengths)),
                     "error": float(abs(lengths / promised - 1).max()), "curve": typical(lengths), "promised": promised})
    return rows


def tanh(V: int, ids: Any, device: str) -> list[dict[str, Any]]:
    rows = []
    for gain in TANH_GAINS:
        model = build(V, "rnn", device, gain=gain)
        seen, U = recorded(model, ids), model.recurrence.layers[0].U.numpy()
        lengths, values = np.linalg.norm(seen["dh"], axis=-1), theory.singular_values(seen["output"], U)
        rows.append({"net": f"tanh RNN, gain {gain}", "theory": float(theory.lyapunov(seen["output"], U)[:, 0].mean()),
                     "measured": slope(typical(lengths)), "curve": typical(lengths), "promised": typical(values[..., 0]),
                     "error": float((lengths / values[..., 0]).max() - 1)})       # > 0 where it is longer than it can be
    return rows


def lstm(V: int, ids: Any, device: str) -> list[dict[str, Any]]:
    rows = []
    for bias in FORGET_BIASES:
        seen = recorded(build(V, "lstm", device, forget_bias=bias), ids)
        lengths = np.linalg.norm(seen["dc"], axis=-1)
        last = seen["dc"][:, -1:] + seen["dh"][:, -1:] * seen["o"][:, -1:] * (1 - np.tanh(seen["c"][:, -1:]) ** 2)
        along = np.linalg.norm(last * theory.forget_product(seen["f"]), axis=-1)
        along[:, -1] = lengths[:, -1]
        rows.append({"net": f"LSTM, forget bias {bias}", "theory": slope(typical(along)), "measured": slope(typical(lengths)),
                     "curve": typical(lengths), "promised": typical(along),
                     "share": float((along / lengths)[:, 0].mean())})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'':<24}{'rate per step back':^24}", f"{'':<24}{'theory':>12}{'measured':>12}"]
    for row in rows:
        if "share" in row:
            note = f"of what arrives at step 1, {row['share']:.2g} is what the memory alone would bring"
        elif "linear" in row["net"]:
            note = f"largest relative error of any length: {row['error']:.1e}"
        else:
            note = ("never longer than the largest singular value allows" if row["error"] < 1e-9
                    else f"BROKEN: up to {row['error']:.1e} longer than the largest singular value allows")
        lines.append(f"{row['net']:<24}{row['theory']:>+12.4f}{row['measured']:>+12.4f}   {note}")
    return "\n".join(lines)


def picture(path: Path, groups: dict[str, list[dict[str, Any]]]) -> None:
    from matplotlib import pyplot as plt
    plt.rcParams.update({"font.size": 12})
    figure, panels = plt.subplots(1, 3, figsize=(15, 5.4), layout="constrained")
    theories = {"linear": "$s^d$", "tanh": "largest singular value", "lstm": "product of forget gates"}
    titles = {"linear": "linear RNN", "tanh": "tanh RNN", "lstm": "LSTM, along the memory"}
    for panel, (kind, rows) in zip(panels, groups.items(), strict=True):
        colours = plt.cm.viridis(np.linspace(0.05, 0.85, len(rows)))
        for row, colour in zip(rows, colours, strict=True):
            d = np.arange(T)[::-1]
            panel.semilogy(d, row["curve"], color=colour, linewidth=2.4, label=row["net"].split(", ")[1])
            panel.semilogy(d, row["promised"], color="black", linewidth=1, linestyle=(0, (4, 3)))
        panel.plot([], [], color="black", linewidth=1, linestyle=(0, (4, 3)), label=f"theory: {theories[kind]}")
        panel.set(title=titles[kind], xlabel="steps back", ylim=(max(1e-20, panel.get_ylim()[0]), None))
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=10, framealpha=0.85, edgecolor="none")
    panels[0].set_ylabel("length of the gradient, geometric mean over sequences")
    figure.suptitle("What the Jacobians promise (dashed) and what the recorder saw", fontsize=16)
    figure.savefig(path, dpi=120)
    plt.close(figure)


@threadpool_limits.wrap(limits=1)
def main() -> None:
    args = arguments()
    corpus = load_corpus()
    vocabulary = Vocabulary.of(corpus.train)
    ids = next(windows(vocabulary.encode(corpus.train), B, T, np.random.default_rng(args.seed)))[0]
    ids = backend.to_device(ids, args.device)
    groups = {measure.__name__: measure(len(vocabulary), ids, args.device) for measure in (linear, tanh, lstm)}
    print(table([row for rows in groups.values() for row in rows]))
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    numbers = [{name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}
               for rows in groups.values() for row in rows]
    (out / "theory_of_gradients.json").write_text(json.dumps({"options": vars(args), "nets": numbers}))
    try:
        picture(out / "theory_of_gradients.png", groups)
    except ImportError:
        print("no picture: matplotlib is not installed; pip install minitx[plots]")
        return
    print(f"\nwrote {out / 'theory_of_gradients.png'} and theory_of_gradients.json")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--seed", type=int, default=0, help="which piece of the novel is read")
    parser.add_argument("--out", default="out", help="folder for results (default: out)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
