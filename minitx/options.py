"""Options that make no sense, refused in one sentence: who was called, which option, what was given, what was expected.

Read next: whoever you came from.
"""

import math
import sys
from typing import Any

import numpy as np


def whole(caller: str, least: int = 1, **options: Any) -> None:
    """Raise ValueError unless all options are whole numbers of at least `least`: sizes and counts."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{caller}: {name} is {value!r}; expected a whole number of at least {least}")


def number(caller: str, low: float = -math.inf, high: float = math.inf, **options: Any) -> None:
    """Raise ValueError unless all options are finite numbers from `low` to `high`."""
    for name, value in options.items():
        real = float(value) if isinstance(value, np.integer | np.floating) else value   # a float32 would round the limits
        if not isinstance(real, int | float) or not abs(real) <= sys.float_info.max or not low <= real <= high:
            limits = f" from {low} to {high}" if high < math.inf else f" of at least {low}" if low > -math.inf else ""
            raise ValueError(f"{caller}: {name} is {value!r:.60}; expected a finite number{limits}")


def kind(caller: str, expected: type, remedy: str, **options: Any) -> None:
    """Raise TypeError unless all options are of one class."""
    for name, value in options.items():
        if not isinstance(value, expected):
            raise TypeError(f"{caller}: {name} is a {type(value).__name__}; expected a {expected.__name__}; {remedy}")
