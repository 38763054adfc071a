"""Numbers as words of a sentence."""

import math

from fedsim.display import epsilon
from fedsim.over_seeds import Interval


def percent(fraction: float | None) -> str:
    """Return a fraction as percent.

    Examples:
        >>> percent(0.1234), percent(None)
        ('12.3 %', 'undefined')
    """
    return "undefined" if fraction is None else f"{100 * fraction:.1f} %"


def signed(fraction: float) -> str:
    """Return a difference of fractions in points, with a true minus.

    Examples:
        >>> signed(-0.0312), signed(0.0)
        ('−3.1', '0.0')
    """
    text = f"{100 * fraction:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def interval(bounds: Interval | None) -> str:
    """Return an interval of differences, in points.

    Examples:
        >>> interval((-0.05, 0.012)), interval(None)
        ('−5.0 to +1.2', 'unknown')
    """
    return "unknown" if bounds is None else f"{signed(bounds[0])} to {signed(bounds[1])}"


def listed(names: list[str]) -> str:
    """Return names as a list in a sentence.

    Examples:
        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def plural(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples:
        >>> plural(1, "run"), plural(1200, "run")
        ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rounded_up(value: float | None) -> str:
    """Return an epsilon that is never below the truth, in full.

    Examples:
        >>> rounded_up(1.23401), rounded_up(14835.2), rounded_up(math.inf), rounded_up(None)
        ('1.24', '14,836', 'infinite', 'none')
    """
    if value is None:
        return "none"
    if math.isinf(value):
        return "infinite"
    return f"{math.ceil(value):,}" if value >= 1000 else epsilon(value)
