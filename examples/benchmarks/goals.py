"""What minitx set out to reach, fixed before it was measured, and whether it did. Times and memory are ratios to PyTorch eager.

"Must" is what has to be reached. The moonshot is what NumPy calls alone have reached, without tape, checks and modules.
"""

from __future__ import annotations

from typing import Any

Goals = dict[str, tuple[float, float | None]]   # goal: (must, moonshot)
Ratio = dict[str, float]                        # over the rounds: median, low, high

MEMORY: Goals = {f"{work} peak memory": (1.00, None) for work in ("W1", "W1s", "W2", "W2s")}
TWO_THREADS: Goals = {
    "W1 time": (0.90, 0.82), "W1s time": (1.50, 1.10), "W2 time": (0.88, 0.76), "W2s time": (0.82, 0.70),
    "W1 step ÷ products": (1.35, 1.23), "W2 step ÷ products": (1.45, 1.33),
    **MEMORY,
    **{f"W3 T={T} time": (1.00, 0.70) for T in (512, 1024, 2048, 4096)},
    "W3 T=4096 ÷ T=1024 memory": (5.00, None),             # linear is 4, quadratic 16
    "W4 softmax time": (3.50, 1.75), "W4 layer_norm time": (7.42, 3.71), "W4 gelu time": (1.84, 0.92),
    "W4 linear time": (1.92, 0.96), "W4 cross_entropy time": (0.60, 0.35), "W4 embedding time": (5.48, 2.74),
    "W4 lstm_cell time": (2.06, 1.03),
    "W5 gpt tokens/s": (2.00, 3.00), "W5 lstm tokens/s": (2.00, 3.00),
}
ONE_THREAD: Goals = {
    "W1 time": (0.85, 0.79), "W1s time": (1.30, 1.00), "W2 time": (0.95, 0.87), "W2s time": (0.80, 0.75),
    **MEMORY,
}
GOALS = {1: ONE_THREAD, 2: TWO_THREADS}         # for other numbers of threads there are none
COSTS: Goals = {"import ÷ import numpy": (1.30, None), "tape, µs per node": (2.40, None)}      # of `costs.py`


def measured(results: dict[str, dict[str, Any]]) -> dict[str, Ratio]:
    """What these results, by workload, say about the goals; of attention the form that is linear in memory counts."""
    found: dict[str, Ratio] = {}
    for work, result in results.items():
        own = "minitx flash" if result["kind"] == "attention" else "minitx"
        what = "tokens/s" if result["kind"] == "generation" else "time"
        if own in result["ratios"]:
            found[f"{work} {what}"] = result["ratios"][own]
        if "products" in result:
            found[f"{work} step ÷ products"] = result["products"]
        if result["kind"] == "training":
            found[f"{work} peak memory"] = once(result["memory_mib"]["minitx"] / result["memory_mib"]["torch"])
    short, long = (results.get(f"W3 T={T}", {}).get("memory_mib", {}).get("minitx flash") for T in (1024, 4096))
    if short and long:
        found["W3 T=4096 ÷ T=1024 memory"] = once(long / short)
    return found


def once(value: float) -> Ratio:
    """What was measured a single time."""
    return {"median": value, "low": value, "high": value}


def judged(results: dict[str, dict[str, Any]], threads: int) -> list[dict[str, Any]]:
    """Every goal that these results can answer."""
    return verdicts(GOALS.get(threads, {}), measured(results))


def verdicts(goals: Goals, ratios: dict[str, Ratio]) -> list[dict[str, Any]]:
    """Of each goal that was measured: what was wanted, the median, how far that reaches."""
    return [{"goal": goal, "must": must, "moonshot": moonshot, "measured": ratios[goal]["median"],
             "reached": verdict(goal, ratios[goal], must, moonshot)}
            for goal, (must, moonshot) in goals.items() if goal in ratios]


def verdict(goal: str, ratio: Ratio, must: float, moonshot: float | None) -> str:
    """How far a goal is reached: by the median where the rounds agree, else by every round; "unsteady" where only some do."""
    if agreed(ratio):
        return reached(goal, ratio["median"], must, moonshot)
    best, worst = (reached(goal, ratio[end], must, moonshot)
                   for end in (("high", "low") if more_is_better(goal) else ("low", "high")))
    return worst if worst != "no" or best == "no" else "unsteady"


def steady(result: dict[str, Any]) -> bool:
    """Whether the rounds agree about minitx."""
    return all(agreed(r) for name, r in result["ratios"].items() if name.startswith("minitx"))


def agreed(ratio: Ratio) -> bool:
    """Whether the rounds agree within 25 %; else something else was busy, or the memory of a process lay badly."""
    return ratio["high"] <= 1.25 * ratio["low"]


def more_is_better(goal: str) -> bool:
    return goal.endswith("tokens/s")


def reached(goal: str, value: float, must: float, moonshot: float | None) -> str:
    """The higher of the two that the value reaches, "moonshot" or "must", else "no"; so it is for NaN."""
    for name, bound in (("moonshot", moonshot), ("must", must)):
        if bound is not None and (value >= bound if more_is_better(goal) else value <= bound):
            return name
    return "no"
