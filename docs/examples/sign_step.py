"""The server step alone: every parameter moves by the same length."""

from fedsim.strategy import SumStrategy


class SignStep(SumStrategy):
    """Step along the signs of the mean update; takes central DP, since that is a sum."""

    def __init__(self, *, server_learning_rate: float = 0.01):
        super().__init__(weighting="uniform")
        self.server_learning_rate = server_learning_rate

    def server_step(self, round_num, arrays, update):
        """Add the sign of the mean update, times the server learning rate."""
        return {n: a + self.server_learning_rate * update[n].sign() for n, a in arrays.items()}
