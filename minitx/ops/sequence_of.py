"""From a cell and a loop to an op: its shape line, its options, and how it hands its arguments to the loop.

`sequence_of(cell)` stands above a loop through time and makes the op of whole sequences from it. No mathematics here: all of
that is in the cell and in the loop.

Read next: `sequences.py`, which needs neither cell nor loop of this kind.
"""

import inspect
from inspect import Parameter

from ..contract import Spec
from ..op import Op, op
from .lengths import live_steps, watching


def states_of(cell):
    """The names of the states of a cell, "h" for h_next; TypeError or ValueError if it cannot be carried through time."""
    write = "write @op('x (B, D), h (B, H), … -> h_next (B, H)')"
    if not isinstance(cell, Op):
        raise TypeError(f"unroll: the cell is a {type(cell).__name__}; expected an op; {write} above a function")
    inputs, outputs = cell.shapes.inputs, cell.shapes.outputs
    states = inputs[1:1 + len(outputs)]
    rows = all(len(spec.axes) == 2 and "..." not in spec.axes and spec == Spec(spec.name, spec.axes)
               for spec in (*inputs[:1], *states, *outputs))
    if not (outputs and rows) or [s.axes for s in states] != [s.axes for s in outputs] or any(s.many for s in inputs):
        raise ValueError(f"unroll: the cell {cell.name} needs a shape line that names its input, its states, its weights and "
                         f"then its next states, input and states as rows of numbers; {write}")
    return [state.name.removesuffix("_next") for state in outputs]


def sequence_of(cell):
    """Make the op of whole sequences from `loop(step, x, state, weights, live, watch)`, which returns value and backward.

    `step(t, x_t, *state, *weights)` is step t of the cell: its next states, always a tuple, and its backward. A weight that
    was left out is None. `live` (T, B, 1) says who has not ended yet, as in `lengths.py`.
    """
    x_line, *others = cell.shapes.inputs
    states, name = cell.shapes.outputs, f"unroll({cell.name})"
    line = (f"{over_time(x_line, x_line.name)}, {', '.join(map(str, others))}, lengths?:int ({x_line.axes[0]}) -> "
            f"{over_time(states[0], 'hs')}, {', '.join(map(str, states))}")
    given = inspect.signature(cell.vjp).parameters.values()
    arrays = [p for p in given if p.kind is not p.KEYWORD_ONLY]
    options = [p for p in given if p.kind is p.KEYWORD_ONLY and p.name != "watch"]
    signature = inspect.Signature([*arrays, Parameter("lengths", Parameter.POSITIONAL_OR_KEYWORD, default=None), *options,
                                   Parameter("watch", Parameter.KEYWORD_ONLY, default=None)])

    def made(loop):
        def sequence(*arrays, watch=None, **options):
            bound = signature.bind(*arrays, **options)
            bound.apply_defaults()
            x, *others, lengths = bound.args
            live = live_steps(name, lengths, x.shape[1])
            watch = watching(live, watch)

            def step(t, *arrays):
                seen = {"watch": lambda name, array, _: watch(name, array, t)} if watch and "watch" in cell.static else {}
                following, backward = cell.vjp(*arrays, **options, **seen)
                return following if isinstance(following, tuple) else (following,), backward

            return loop(step, x, others[:len(states)], others[len(states):], live, watch)

        sequence.__name__, sequence.__module__ = name, cell.__module__       # an op made of a user's cell is the user's
        sequence.__doc__, sequence.__signature__ = loop.__doc__, signature  # type: ignore[attr-defined]
        return op(line)(sequence)
    return made


def over_time(spec, name):
    """The line of an array (B, D) of every step, all steps together: (B, T, D)."""
    return str(spec._replace(name=name, axes=(spec.axes[0], "T", *spec.axes[1:])))
