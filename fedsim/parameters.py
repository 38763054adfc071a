"""Checks of a component's own parameters, as they come from the YAML."""

import math
from collections.abc import Iterable
from typing import Any

from fedsim.errors import ConfigError


def number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> float:
    """Return a finite number of a range.

    Args:
        name: The setting's dotted path, for errors.
        value: What was given.
        at_least: The range's lower end, if it belongs to the range.
        above: The lower end, if it does not.
        at_most: The upper end, if it belongs to the range.
        below: The upper end, if it does not.

    Raises:
        ConfigError: It is no number, not finite, or out of the range.

    Examples:
        >>> number("strategy.beta_1", 0, at_least=0, below=1)
        0.0
    """
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    wanted = " and ".join(
        f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None
    )
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if (
        not fits
        or (at_least is not None and value < at_least)
        or (above is not None and value <= above)
        or (at_most is not None and value > at_most)
        or (below is not None and value >= below)
    ):
        raise ConfigError(
            f"{name}: expected a finite number {wanted}".rstrip()
            + f", found {value!r}; write one in this range"
        )
    return float(value)


def whole_number(name: str, value: Any, *, at_least: int) -> int:
    """Return a whole number of at least ``at_least``.

    Raises:
        ConfigError: It is something else.

    Examples:
        >>> whole_number("strategy.adapt_every", 5, at_least=1)
        5
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigError(
            f"{name}: expected a whole number of at least {at_least}, found {value!r}; write one "
            "in this range"
        )
    return value


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return one of some texts.

    Raises:
        ConfigError: It is none of them.

    Examples:
        >>> one_of("strategy.option", "I", ("I", "II"))
        'I'
    """
    known = list(choices)
    if value not in known:
        raise ConfigError(
            f"{name}: expected one of {', '.join(known)}, found {value!r}; choose one of them"
        )
    return str(value)
