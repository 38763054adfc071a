"""What FedAdam, FedYogi and FedAdagrad share: two moments of the update, and how they start.

Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv:2003.00295), algorithm 2.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch

from fedsim.arrays import Arrays, zeros_like
from fedsim.errors import ConfigError
from fedsim.parameters import number, one_of

BiasCorrection = Literal["none", "step_size", "step_size_next", "moments"]


class Moments:
    """The moments ``m`` and ``v`` of the updates, and the direction that follows from them.

    ``m <- beta_1 m + (1 - beta_1) u``, and ``v`` as ``grown`` says. In round t the direction is

    - ``none``: ``m / (sqrt(v) + epsilon)``, as in the paper;
    - ``step_size``: that times ``sqrt(1 - beta_2^t) / (1 - beta_1^t)`` (Kingma and Ba, Adam,
      arXiv:1412.6980, before section 2.1);
    - ``step_size_next``: the same with t + 1 for t;
    - ``moments``: ``(m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)`` (the same
      paper's algorithm 1).

    Args:
        grown: From ``v`` and the update to the next ``v``.
        beta_1: Decay of the first moment, in [0, 1).
        beta_2: Decay of the second moment, in [0, 1); for the correction.
        epsilon: Adaptivity (the paper's tau), above 0.
        initial_v: What ``v`` starts at, at least 0.
        bias_correction: Which of the directions.
    """

    def __init__(
        self,
        grown: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        *,
        beta_1: float,
        beta_2: float = 0.0,
        epsilon: float,
        initial_v: float,
        bias_correction: str = "none",
    ) -> None:
        self._grown = grown
        self.beta_1 = number("strategy.beta_1", beta_1, at_least=0, below=1)
        self.beta_2 = number("strategy.beta_2", beta_2, at_least=0, below=1)
        self.epsilon = number("strategy.epsilon", epsilon, above=0)
        self.initial_v = number("strategy.initial_v", initial_v, at_least=0)
        known = get_args(BiasCorrection)
        self.bias_correction = one_of("strategy.bias_correction", bias_correction, known)
        self.m: Arrays = {}
        self.v: Arrays = {}

    def direction(self, round_num: int, update: Arrays) -> Arrays:
        """Take an update in, and return where the server goes.

        Args:
            round_num: t, from 1.
            update: The mean update.
        """
        if not self.m:
            self.m = zeros_like(update)
            self.v = {name: torch.full_like(u, self.initial_v) for name, u in update.items()}
        # New dicts: the round before's state may be written to a checkpoint yet.
        b = self.beta_1
        self.m = {name: b * self.m[name] + (1 - b) * u for name, u in update.items()}
        self.v = {name: self._grown(self.v[name], u) for name, u in update.items()}
        t = round_num + 1 if self.bias_correction == "step_size_next" else round_num
        first, second = 1 - self.beta_1**t, 1 - self.beta_2**t
        if self.bias_correction == "moments":
            return {
                name: m / first / ((self.v[name] / second).sqrt() + self.epsilon)
                for name, m in self.m.items()
            }
        size = 1.0 if self.bias_correction == "none" else second**0.5 / first
        return {
            name: size * (m / (self.v[name].sqrt() + self.epsilon)) for name, m in self.m.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return both moments."""
        return {"m": self.m, "v": self.v}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the moments back."""
        self.m, self.v = state["m"], state["v"]


def with_preset(
    preset: str | None, presets: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters that a preset sets; those that are given win over the paper's.

    Args:
        preset: One of ``presets``; None for ``"paper"``.
        presets: Parameters by preset and name.
        given: By name; None where nothing is given.

    Raises:
        ConfigError: There is no such preset, or a parameter disagrees with the named one.

    Examples:
        >>> with_preset(None, {"paper": {"initial_v": 1.0}}, {"initial_v": None})
        {'initial_v': 1.0}
    """
    values = presets["paper" if preset is None else one_of("strategy.preset", preset, presets)]
    for name, value in given.items():
        if preset is not None and value is not None and value != values[name]:
            raise ConfigError(
                f"strategy.{name}: expected {values[name]!r}, as strategy.preset = {preset} says, "
                f"found {value!r}; leave one of the two out"
            )
    return {name: values[name] if value is None else value for name, value in given.items()}
