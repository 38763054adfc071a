"""A whole strategy, on nothing but Flower: it runs in fedsim and in Flower alike."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy


class PartOfTheWay(Strategy):
    """Go a part of the way to the mean of the users' arrays."""

    def __init__(self, share: float = 0.5):
        self.share = share
        self.arrays = ArrayRecord()  # attributes that can be stored come back on resume

    def configure_train(self, server_round, arrays, config, grid):
        """Ask every node for training: fedsim's Grid shows the round's cohort alone."""
        self.arrays = arrays
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, MessageType.TRAIN) for node in grid.get_node_ids()]

    def aggregate_train(self, server_round, replies):
        """Return the new arrays, and what goes into the record."""
        contents = [reply.content for reply in replies if reply.has_content()]
        if not contents:
            return self.arrays, MetricRecord()
        moved = ArrayRecord()
        for name, array in self.arrays.items():
            before = array.numpy()
            mean = sum(content["arrays"][name].numpy() for content in contents) / len(contents)
            moved[name] = Array(np.asarray(before + self.share * (mean - before)))
        losses = [float(content["metrics"]["train_loss"]) for content in contents]
        return moved, MetricRecord({"train_loss": sum(losses) / len(losses)})

    def configure_evaluate(self, server_round, arrays, config, grid):
        """Ask nobody: fedsim scores every round itself."""
        return []

    def aggregate_evaluate(self, server_round, replies):
        """Return nothing."""

    def summary(self):
        """Print nothing."""
