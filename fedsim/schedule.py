"""A server learning rate that depends on the round."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedsim.errors import ConfigError
from fedsim.parameters import number, one_of, whole_number

LearningRate = float | Mapping[str, Any]
"""How a learning rate stands in the YAML: a number, or a mapping that ``learning_rate`` reads."""

_KEYS = ("schedule", "peak", "last", "warmup_rounds", "num_rounds")


@dataclass(frozen=True)
class Schedule:
    """A learning rate as a function of the round alone, so that a resumed run needs no state.

    In round t, from 1, with w warm-up rounds of T::

        peak t / w                                       t <= w
        peak + (last - peak) s          (linear)         w < t < T,  s = (t - w) / (T - w)
        last + (peak - last) (1 + cos(pi s)) / 2   (cosine)
        last                                             t >= T

    Attributes:
        shape: ``"linear"`` or ``"cosine"``: the way from the peak to the last value.
        peak: Above 0.
        last: At least 0.
        warmup_rounds: w, from 0; the rate is not 0 in any of them.
        num_rounds: T, above w, or 0 with w = 0: then the rate is ``last`` from the start.

    Examples:
        >>> rate = Schedule("linear", peak=0.1, last=0.02, warmup_rounds=4, num_rounds=8)
        >>> [round(rate(t), 3) for t in range(1, 10)]
        [0.025, 0.05, 0.075, 0.1, 0.08, 0.06, 0.04, 0.02, 0.02]
    """

    shape: Literal["linear", "cosine"]
    peak: float
    last: float
    warmup_rounds: int = 0
    num_rounds: int = 0

    def __call__(self, round_num: int) -> float:
        """Return the rate in a round, from 1."""
        if round_num <= self.warmup_rounds:
            return self.peak * round_num / self.warmup_rounds
        if round_num >= self.num_rounds:
            return self.last
        done = (round_num - self.warmup_rounds) / (self.num_rounds - self.warmup_rounds)
        if self.shape == "linear":
            return self.peak + (self.last - self.peak) * done
        return self.last + (self.peak - self.last) * (1 + math.cos(math.pi * done)) / 2


def learning_rate(value: LearningRate, name: str = "strategy.server_learning_rate") -> Schedule:
    """Read a learning rate: a number above 0, or a schedule.

    A schedule is ``{schedule: linear, peak: 0.1, last: 0.02, warmup_rounds: 30, num_rounds:
    5000}``; ``schedule`` may be ``cosine`` too, ``last`` and ``warmup_rounds`` are 0 if left out.

    Args:
        value: From the YAML.
        name: The setting's dotted path, for errors.

    Raises:
        ConfigError: It is neither, or a number in it is out of its range.

    Examples:
        >>> learning_rate(0.5)(1)
        0.5
        >>> learning_rate({"schedule": "cosine", "peak": 1.0, "num_rounds": 2})(1)
        0.5
    """
    if not isinstance(value, Mapping):
        rate = number(name, value, above=0)
        return Schedule("linear", peak=rate, last=rate)
    for key in value:
        if key not in _KEYS:
            close = difflib.get_close_matches(str(key), _KEYS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_KEYS)}"
            raise ConfigError(f"{name}.{key}: expected a part of a schedule, found {key!r}; {hint}")
    for key in ("schedule", "peak", "num_rounds"):
        if key not in value:
            raise ConfigError(f"{name}: expected {key!r} in a schedule, found none; add it")
    shape = one_of(f"{name}.schedule", value["schedule"], ("linear", "cosine"))
    warmup = whole_number(f"{name}.warmup_rounds", value.get("warmup_rounds", 0), at_least=0)
    return Schedule(
        shape="linear" if shape == "linear" else "cosine",
        peak=number(f"{name}.peak", value["peak"], above=0),
        last=number(f"{name}.last", value.get("last", 0.0), at_least=0),
        warmup_rounds=warmup,
        num_rounds=whole_number(f"{name}.num_rounds", value["num_rounds"], at_least=warmup + 1),
    )
