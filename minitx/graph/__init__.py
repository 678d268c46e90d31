"""Reading the graph of a computation: how much work it is, how much of it must wait, and how far a signal travels.

    from minitx import graph
    print(graph.cost(model.loss, ids, targets))      # matrix products forward and backward: all, and the longest row of them
    graph.paths(model, ids)                          # from each position to each: the fewest products on the way

Nothing is derived from formulas. The model runs, forward and backward, on an array library of its own that remembers for
every element how many products stand behind it. What runs on NumPy is measured as it stands: fused or step by step, through
the tape or by hand. `chains` says what is remembered, `arrays` and `library` how, and `measures` has the two functions.

Read next: `chains.py`.
"""

from .measures import Cost, Products, cost, paths

__all__ = ["Cost", "Products", "cost", "paths"]
