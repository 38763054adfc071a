"""q-FedAvg: a fairer distribution of the loss over users.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020 (arXiv:1905.10497),
algorithm 2.
"""

import torch

from fedsim.arrays import Arrays, l2_norm
from fedsim.client_part import Client, ClientPart
from fedsim.errors import EngineError
from fedsim.parameters import number
from fedsim.strategy import SumStrategy

H = "qfedavg.h"
"""Under this name the users' part of the step's length comes back."""

_LEAST = 1e-10  # added to every loss, as in the authors' code: F^(q - 1) has a pole at 0


class QFedAvg(SumStrategy):
    """Give users with a large loss a larger say: minimize ``sum_k F_k^(q + 1) / (q + 1)``.

    User k trains from x to w, and with ``L = 1 / learning_rate`` of its local SGD

        ``D = L F_k(x)^q (x - w)``, ``h = q F_k(x)^(q - 1) |L (x - w)|^2 + L F_k(x)^q``;

    the server: ``x <- x - sum(D) / sum(h)``. ``F_k(x)`` is the mean loss over the user's images at
    the parameters that it received, without augmentation, as in the paper. (Flower 1.42's QFedAvg
    takes the loss that the client reports, which usually is the mean over its training.) Every
    user counts the same; q = 0 is FedAvg with ``weighting: uniform``.

    Both sums are divided by L here, which changes nothing but keeps the numbers near 1.

    Args:
        q: At least 0; the larger, the fairer, and the slower. The paper tries 0.001 to 5.
    """

    def __init__(self, *, q: float = 0.1) -> None:
        super().__init__(weighting="uniform")
        self.q = number("strategy.q", q, at_least=0)

    def client_part(self) -> ClientPart:
        """Return what weights updates by the loss."""
        return LossWeighted(self.q)

    def sent_along(self, arrays: Arrays) -> Arrays:
        """Return a zero, in whose place h comes back."""
        return {H: torch.zeros(1, dtype=next(iter(arrays.values())).dtype)}

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Divide the two sums, or means: their number cancels."""
        h = float(update[H])
        if h < 0:
            raise EngineError(
                f"strategy QFedAvg, round {round_num}: expected a positive sum of h, found {h:.3g} "
                "after privacy.central's noise; raise the cohort's size, or use another strategy"
            )
        if h == 0:  # nobody took part
            return dict(arrays)
        return {name: a.add(update[name], alpha=1 / h) for name, a in arrays.items()}


class LossWeighted(ClientPart):
    """Weights a user's update by the loss that it started from.

    Args:
        q: The exponent.
    """

    def __init__(self, q: float) -> None:
        self.q = q

    def finish(self, client: Client) -> Arrays:
        """Replace w by ``x - D / L``; return ``h / L``."""
        moved = {name: w - client.received[name] for name, w in client.parameters.items()}
        for name, w in client.parameters.items():
            w.copy_(client.received[name])
        loss = client.loss() + _LEAST
        weight = loss**self.q
        for name, w in client.parameters.items():
            w.add_(moved[name], alpha=weight)
        square = l2_norm(moved.values()) ** 2 / client.learning_rate
        h = self.q * loss ** (self.q - 1) * square + weight
        return {H: torch.full_like(client.sent_along[H], h)}
