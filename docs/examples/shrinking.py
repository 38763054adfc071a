"""Another term in every user's loss: mu / 2 times the squared length of the parameters."""

from fedsim.arrays import Arrays
from fedsim.client_part import ClientPart
from fedsim.strategy import SumStrategy


class Shrink(ClientPart):
    """Adds the term's gradient, mu times the parameter, to every step's."""

    keeps_example_level = True  # it sees no image, so example-level DP-SGD stays what it is

    def __init__(self, mu):
        self.mu = mu

    def adjust(self, client, gradients):
        """Change a step's gradients in place."""
        for gradient, parameter in zip(gradients, client.parameters.values(), strict=True):
            gradient.add_(parameter, alpha=self.mu)


class Shrinking(SumStrategy):
    """Federated averaging of users who keep their parameters short."""

    def __init__(self, *, mu: float = 0.01):
        super().__init__(weighting="uniform")
        self.mu = mu

    def client_part(self):
        """Return what runs where users train; made once in each process."""
        return Shrink(self.mu)

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Add the mean update."""
        return {name: a + update[name] for name, a in arrays.items()}
