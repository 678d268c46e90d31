"""What only a GPU can tell, in one command and less than ten minutes.

    python examples/benchmarks/gpu_check.py --out gpu_check.json

    steps   training steps on the GPU: the losses are those of the CPU, with fused kernels and without; how long each takes,
            and how often the host waits in one
    graph   a recurrent loop captured as a CUDA graph: does CuPy capture its products by now, and what would that gain?
    tests   every test that is marked gpu: the gradient-check contract, all of it, on CuPy
    speed   `speed.py --device cuda` against PyTorch, where that is installed

Whatever does not fit into the time is left out, and the summary says so. The exit code is 0 if all that was checked holds, 1 if
something does not, and 2 where there is no GPU: then nothing is checked.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import speed
from workloads import GROUPS, LR, V, Work, batch, weights

from minitx import backend
from minitx.backend import Array
from minitx.models import RecurrentLM, TransformerLM
from minitx.optim import AdamW
from minitx.training import train

HERE = Path(__file__).parent
LIMIT = 570                                                 # seconds in all
TOLERANCE = 1e-4                                            # between losses: float32, added up in another order
DOORS = ["get", "item", "tolist", "__int__", "__float__", "__bool__", "__index__", "__format__", "__repr__"]


# Steps

@contextmanager
def waits(array: type) -> Iterator[list[str]]:
    """A list that grows by one word whenever the host asks an array of this class for its numbers, and so waits for them."""
    found: list[str] = []
    inside = False

    def counting(name: str, ask: Callable) -> Callable:
        @functools.wraps(ask)
        def door(*args: Any, **options: Any) -> Any:
            nonlocal inside
            if inside:                                      # one door may lead through another
                return ask(*args, **options)
            found.append(name)
            inside = True
            try:
                return ask(*args, **options)
            finally:
                inside = False
        return door

    own = {name: vars(array).get(name) for name in DOORS if hasattr(array, name)}
    for name in own:
        setattr(array, name, counting(name, getattr(array, name)))
    try:
        yield found
    finally:
        for name, before in own.items():
            setattr(array, name, before) if before is not None else delattr(array, name)


def steps(work: Work, device: str, fuse: bool, count: int = 13) -> dict[str, Any]:
    """Train for a few steps: the losses, the median time of a step in ms, and what made the host wait in the last one."""
    home = backend.device(device)
    if not fuse:
        home = backend.register(dataclasses.replace(home, fuse=None))
    s = work.sizes
    model = (RecurrentLM(V, s["D"], s["H"], s["L"]) if work.what == "lstm" else
             TransformerLM(V, s["D"], s["N"], s["L"], s["T"]))
    model.load_state_dict(weights(work))
    model.to(device)
    times, asked = [time.perf_counter()], []

    with waits(home.array) if device != "cpu" else nullcontext([]) as found:
        def after(_: Any) -> None:
            asked[:] = found
            found.clear()
            times.append(time.perf_counter())

        history = train(model, [batch(work)] * count, AdamW(model.parameters(), LR), steps=count, after_step=after, title=None,
                        threads=1)
    return {"losses": history.loss, "ms": 1e3 * median(np.diff(times)[3:]), "waits": list(asked)}


def compared(work: Work, device: str, run: Callable) -> dict[str, Any]:
    """Fused, unfused and on the CPU: `run(work, device, fuse)` each, and whether they agree."""
    fused, plain, cpu = run(work, device, True), run(work, device, False), run(work, "cpu", True)
    far = max(float(np.max(np.abs(np.array(r["losses"]) / cpu["losses"] - 1))) for r in (fused, plain))
    return {"fused_ms": fused["ms"], "plain_ms": plain["ms"], "cpu_ms": cpu["ms"], "losses_differ_by": far,
            "waits": fused["waits"], "holds": far < TOLERANCE and len(fused["waits"]) == 1}


def alone(end: float, *args: Any) -> Any:
    """`steps` in a process of its own, so that nothing is left over from the run before. It is ended after two minutes, or when
    the time is up."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(steps, args).get(timeout=max(0, min(120, end - time.perf_counter())))


# Graph

@backend.fused
def squash(xp: Any, a: Array, p: Array) -> None:
    a += p
    xp.tanh(a, out=a)


def recurrence(product: Callable, a: Array, hs: Array, U: Array, p: Array) -> None:
    """h_t = tanh(a_t + h_{t-1} U) for all steps of a (T, B, H), over arrays that are there already: hs[t] becomes h_t."""
    for t in range(len(a)):
        product(hs[t], U, p)
        hs[t + 1] = a[t]
        squash(hs[t + 1], p)


def captured(cuda: Any, work: Callable[[], None]) -> Callable[[], None]:
    """What `work` launches, recorded once as a graph: the returned function launches all of it at once."""
    stream = cuda.Stream(non_blocking=True)
    cuda.Device().synchronize()                             # this stream does not wait for what others have begun
    with stream:
        work()                                              # kernels are compiled before, and the pool has what it needs
        stream.synchronize()
        stream.begin_capture()
        try:
            work()
        finally:
            graph = stream.end_capture()
    return lambda: graph.launch(stream)


def graphs(xp: Any, cuda: Any, summed: Callable, T: int = 128, B: int = 32, H: int = 256) -> dict[str, Any]:
    """The loop launched step by step, with a product of cuBLAS, and as a graph. CuPy 14 captures nothing of cuBLAS; `summed` is
    a product without it, by a reduction kernel. Both are timed, and must agree."""
    rng = np.random.default_rng(0)
    a, U = (xp.asarray(rng.standard_normal(shape).astype("float32") / np.sqrt(H)) for shape in ((T, B, H), (H, H)))
    hs, p = xp.zeros((T + 1, B, H), "float32"), xp.empty((B, H), "float32")

    def blas(h: Array, U: Array, p: Array) -> None:
        xp.matmul(h, U, out=p)

    loops: dict[str, Any] = {name: lambda product=product: recurrence(product, a, hs, U, p)
                             for name, product in (("blas", blas), ("summed", summed))}
    found: dict[str, Any] = {"holds": True}
    for name, product in (("blas", blas), ("summed", summed)):
        try:
            loops[f"{name} as a graph"] = captured(cuda, lambda product=product: recurrence(product, a, hs, U, p))
        except Exception as refusal:                        # of many kinds: CuPy's, or CUDA's
            found[f"{name} as a graph"] = f"{type(refusal).__name__}: {refusal}"
    expected = None
    for name, loop in loops.items():
        times = []
        for _ in range(6):
            hs[1:] = 0
            cuda.Device().synchronize()
            start = time.perf_counter()
            loop()
            cuda.Device().synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        values = backend.to_host(hs)
        expected = values if expected is None else expected
        found[name] = median(times[1:])
        found["holds"] &= bool(np.allclose(values, expected, rtol=TOLERANCE, atol=TOLERANCE))
    return found


def graph_part() -> dict[str, Any]:
    import cupy
    product = cupy.ReductionKernel("T h, T u", "T y", "h * u", "a + b", "y = a", "0", "product")
    return graphs(cupy, cupy.cuda, lambda h, U, p: product(h[:, None, :], U.T[None], axis=-1, out=p))


# Programs

def program(end: float, *command: str) -> dict[str, Any]:
    """Run another program until then at most: whether it ended well, and the last that it said."""
    with subprocess.Popen([sys.executable, *command], cwd=HERE.parent.parent, text=True, start_new_session=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        try:
            said, _ = running.communicate(timeout=max(0, end - time.perf_counter()))
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)          # and what it has started
            raise
    return {"holds": running.returncode == 0, "last": "\n".join(said.strip().splitlines()[-12:])}


def main() -> int:
    args = arguments()
    try:
        backend.device("cuda")
    except RuntimeError as error:
        print(f"gpu_check: nothing was checked; {error}")
        return 2
    end, results = time.perf_counter() + LIMIT, {}

    def part(name: str, check: Callable, *args: Any) -> None:
        results[name] = found = attempt(end, check, *args)
        shown = {True: "holds", False: "FAILS", None: "left out"}[found["holds"]]
        print(f"{name:12}{shown:9}", {key: value for key, value in found.items() if key != "holds"}, flush=True)

    for name in ("W1", "W1s", "W2", "W2s"):
        part(name, compared, GROUPS[name][0], "cuda", functools.partial(alone, end))
    part("graph", graph_part)
    part("tests", program, end, "-m", "pytest", "-m", "gpu", "-q", "-n", "8")
    if importlib.util.find_spec("torch"):
        part("speed", program, end, str(HERE / "speed.py"), "--device", "cuda", "--rounds", "3")
    speed.write(args.out, results)
    return int(any(found["holds"] is False for found in results.values()))


def attempt(end: float, check: Callable, *args: Any) -> dict[str, Any]:
    """What a check found; an error is a finding, too, and not the end of the others. None holds that has no time any more."""
    if time.perf_counter() >= end:
        return {"holds": None, "error": "no time was left"}
    try:
        return check(*args)
    except Exception as error:
        late = isinstance(error, multiprocessing.TimeoutError | subprocess.TimeoutExpired) and time.perf_counter() >= end
        return {"holds": None if late else False, "error": f"{type(error).__name__}: {error}"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="a JSON file for all numbers")
    return speed.checked(parser)


if __name__ == "__main__":
    sys.exit(main())
