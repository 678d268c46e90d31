"""The results as lines: a row for each workload as it comes, what else is known of it, and the goals at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from goals import more_is_better, steady

TITLES = {"training": "A training step (forward, loss, backward, update): ms",
          "attention": "Causal attention alone (forward, backward; B 2, N 4, K 64): ms",
          "op": "Single ops (forward, backward): ms",
          "generation": "Writing (one text, the likeliest symbol each time): tokens/s, with the reading of the prompt"}


def title(kind: str, contenders: Sequence[str]) -> str:
    """Above the rows of one kind. Beside each contender stands its ratio to torch, and the range of it over the rounds."""
    cells = [f"{name:>14}{'÷ torch':>9}{'':14}" for name in contenders if name not in ("torch", "products")]
    return f"\n{TITLES[kind]}\n{'':<18}{'torch':>8}{''.join(cells)}".rstrip()


def row(name: str, result: dict[str, Any]) -> str:
    """The medians of one workload."""
    cells = [f"{shown(result, name):>14}{r['median']:>9.2f} {brackets(r):<13}" for name, r in result["ratios"].items()]
    return f"{name:<18}{shown(result, 'torch'):>8}{''.join(cells)}".rstrip() + "  unsteady" * (not steady(result))


def shown(result: dict[str, Any], contender: str) -> str:
    ms = result["ms"][contender]
    return f"{1e3 * result['count'] / ms:,.0f}" if "count" in result else f"{ms:.2f}"


def brackets(r: dict[str, float]) -> str:
    return f"({r['low']:.2f} … {r['high']:.2f})"


def details(result: dict[str, Any]) -> list[str]:
    """What else is known of a workload."""
    def of_each(numbers: dict[str, float], digits: int = 0) -> str:
        return ", ".join(f"{name} {number:,.{digits}f}" for name, number in numbers.items())

    lines = []
    if products := result.get("products"):
        lines.append(f"matrix products alone {products['ms']:.2f} ms ({products['gflop'] / products['ms'] * 1e3:.0f} GFLOP/s); "
                     f"the step takes {products['step']:.2f} of that {brackets(products)}")
    if shares := result.get("shares"):
        lines.append("time by op: " + ", ".join(f"{row['op']} {row['share']:.0%}" for row in shares[:6]))
    if calls := result.get("calls_ms"):
        lines.append(f"its calls alone {calls:.2f} ms, {calls / result['ms']['minitx']:.0%} of it")
    lines += [f"{row['share']:4.0%}  {row['line']}" for row in result.get("lines", [])[:4]]
    if memory := result.get("memory_mib"):
        above = "imports" if result["kind"] == "training" else "its inputs"
        lines.append(f"peak memory above {above}, MiB: {of_each(memory)}"
                     + (f"; page faults of a step: {of_each(result['page_faults'])}" if "page_faults" in result else ""))
    if launches := result.get("launches_ms"):
        lines.append(f"launches alone, ms: {of_each(launches, 2)}")
    return [f"{'':<10}{line}" for line in lines]


def verdicts(goals: Sequence[dict[str, Any]]) -> str:
    """The goals, what was measured, and how far each was reached."""
    lines = [f"{'goal (ratio to torch)':<30}{'must':>9}{'moonshot':>11}{'measured':>11}   reached"]
    for g in goals:
        sign = "≥" if more_is_better(g["goal"]) else "≤"
        must, moonshot = ("–" if bound is None else f"{sign} {bound:.2f}" for bound in (g["must"], g["moonshot"]))
        lines.append(f"{g['goal']:<30}{must:>9}{moonshot:>11}{g['measured']:>11.2f}   {g['reached']}")
    met = sum(g["reached"] in ("must", "moonshot") for g in goals)
    return "\n".join([*lines, f"{met} of {len(goals)} goals reached"])
