"""Something that travels beside the model, and something that every user keeps between rounds.

Users remember the mean gradient of their last round, the server an estimate of everybody's. Each
step is corrected by the difference, so that users of unlike data drift apart less.
"""

from fedsim.arrays import zeros_like
from fedsim.client_part import ClientPart
from fedsim.strategy import SumStrategy

PREFIX = "everybodys."  # what travels must not be called like one of the model's arrays


class Correction(ClientPart):
    """Corrects every step, and remembers this round's mean gradient."""

    state_copies = 1.0  # a user keeps as much as the model is large

    def adjust(self, client, gradients):
        """Change a step's gradients in place: theirs - own + everybody's."""
        for name, gradient in zip(client.parameters, gradients, strict=True):
            gradient.add_(client.sent_along[PREFIX + name])
            if client.state:  # empty in a user's first round
                gradient.sub_(client.state[name])

    def finish(self, client):
        """Keep the new mean gradient; send back by how much it has changed."""
        rate = client.learning_rate * max(client.num_steps, 1)
        before, kept, changed = client.state, {}, {}
        for name, parameter in client.parameters.items():
            own = before[name] if before else 0.0
            mean = (client.received[name] - parameter) / rate
            kept[name] = mean + own - client.sent_along[PREFIX + name]
            changed[PREFIX + name] = kept[name] - own
        client.state = kept  # replace it: what is written into the old one is not kept
        return changed


class RememberedDrift(SumStrategy):
    """Federated averaging with corrected steps.

    Args:
        share: Of all users who take part in a round: how fast the server's estimate follows.
    """

    def __init__(self, *, share: float = 0.1):
        super().__init__(weighting="uniform")
        self.share, self.everybodys = share, {}

    def client_part(self):
        """Return what runs where users train."""
        return Correction()

    def sent_along(self, arrays):
        """Send the estimate: the same names and shapes in every round."""
        self.everybodys = self.everybodys or zeros_like(arrays)
        return {PREFIX + name: estimate for name, estimate in self.everybodys.items()}

    def server_step(self, round_num, arrays, update):
        """Add the mean update, and follow the mean change of the gradients."""
        self.everybodys = {
            name: estimate + self.share * update[PREFIX + name]
            for name, estimate in self.everybodys.items()
        }
        return {name: a + update[name] for name, a in arrays.items()}

    def state_dict(self):
        """Return what a resumed run needs."""
        return {"everybodys": self.everybodys}

    def load_state_dict(self, state):
        """Take it back."""
        self.everybodys = state["everybodys"]
