"""What minitx costs before it computes anything: the import, and a node of the tape.

    python examples/benchmarks/costs.py --out docs/speed/costs.json

The import is compared with that of NumPy, which is a part of it: new processes that take turns, with bytecode written as it is
after the first time. A node is an op call on Tensors, forward and backward, as one of a chain of ops that compute nothing.
There noise can only add, so shown is the least of many rounds. It takes half a minute.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import goals
import numpy as np
import speed

import minitx as mx

ROOT = Path(mx.__file__).parent.parent
CHAIN = 60                                      # nodes
MODULES = ("numpy", "minitx")
VALUE = np.ones((2, 4), "float32")              # what ops return that compute nothing


@mx.op("x (...) -> y (...)")
def alone(x: Any) -> Any:
    return VALUE, lambda dy: dy


@mx.op("x (B, D), W (D, O), b (O) -> y (B, O)")
def layer(x: Any, W: Any, b: Any) -> Any:
    return VALUE, lambda dy: (dy, W, b)


def node(op: Any, *shapes: tuple[int, ...], rounds: int) -> dict[str, float]:
    """µs for each node of a chain whose ops take a value, and parameters of these shapes."""
    x = ones(2, 4)
    parameters = [[ones(*shape) for shape in shapes] for _ in range(CHAIN)]

    def chain() -> mx.Tensor:
        y = x
        for own in parameters:
            y = op(y, *own)
        return y

    forward = least(chain, rounds)
    return {"forward": forward, "backward": least(lambda: mx.gradients(chain(), VALUE), rounds) - forward}


def ones(*shape: int) -> mx.Tensor:
    return mx.tensor(np.ones(shape, "float32"), requires_grad=True)


def least(run: Callable[[], Any], rounds: int) -> float:
    """The shortest time of all rounds, in µs for each node."""
    def once() -> float:
        start = time.perf_counter()
        run()
        return 1e6 * (time.perf_counter() - start) / CHAIN

    return min(once() for _ in range(rounds))


def tape(rounds: int) -> dict[str, dict[str, float]]:
    """By what the op takes: a value alone; or two parameters besides, with gradients of their own."""
    return {"one argument": node(alone, rounds=rounds), "three arguments": node(layer, (4, 4), (4,), rounds=rounds)}


def imports(rounds: int) -> dict[str, Any]:
    """ms in a new process each, and the ratio round by round."""
    times: dict[str, list[float]] = {name: [] for name in MODULES}
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        for _ in range(rounds + 1):
            for name in MODULES:
                times[name].append(imported(name, environment | {"PYTHONPYCACHEPREFIX": folder}))
    numpy, ours = (times[name][1:] for name in MODULES)             # the first time, bytecode is written
    ratios = [a / b for a, b in zip(ours, numpy, strict=True)]
    return {"ms": {"numpy": median(numpy), "minitx": median(ours)},
            "ratio": {"median": median(ratios), "low": min(ratios), "high": max(ratios)}}


def imported(name: str, environment: dict[str, str]) -> float:
    program = f"import time; start = time.perf_counter(); import {name}; print(1e3 * (time.perf_counter() - start))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE)
    return float(done.stdout)


def main() -> None:
    args = arguments()
    about = speed.machine(args)
    nodes, brought = tape(args.rounds * 10), imports(args.rounds)
    for name, µs in nodes.items():
        print(f"a node of {name:<18}{µs['forward']:6.2f} µs forward {µs['backward']:6.2f} backward")
    print(f"import minitx {brought['ms']['minitx']:.0f} ms, import numpy {brought['ms']['numpy']:.0f} ms")
    values = {"import ÷ import numpy": goals.once(brought["ratio"]["median"]),
              "tape, µs per node": goals.once(sum(nodes["one argument"].values()))}
    verdicts = goals.verdicts(goals.COSTS, values)
    for g in verdicts:
        print(f"{g['goal']:<30}≤ {g['must']:.2f}{g['measured']:8.2f}   {g['reached']}")
    speed.write(args.out, {**about, "tape_us": nodes, "import": brought, "goals": verdicts})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="turns of the imports, and ten times as many of the tape "
                                                               "(default: 21)")
    parser.add_argument("--out", help="a JSON file for all numbers")
    parser.set_defaults(device="cpu", threads=1)
    return speed.checked(parser)


if __name__ == "__main__":
    main()
