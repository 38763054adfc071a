"""Updates that nobody trained, and what a strategy makes of them."""

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedsim.arrays import Arrays
from fedsim.combine_strategy import CombineStrategy
from fedsim.flower_seam import ensure_task_identity, to_arrays, to_record
from fedsim.streams import torch_stream

SHAPES = {"matrix": (7, 5), "vector": (3,), "scalar": ()}


def honest(num_users: int, *, spread: float = 1.0, center: float = 0.0) -> list[Arrays]:
    """Normal updates around a center."""
    return [
        {
            name: center + spread * torch.randn(shape, generator=torch_stream(3, name, user))
            for name, shape in SHAPES.items()
        }
        for user in range(num_users)
    ]


def constant(value: float) -> Arrays:
    return {name: torch.full(shape, value) for name, shape in SHAPES.items()}


def ours(strategy: CombineStrategy, updates: list[Arrays], examples: list[int]) -> Arrays:
    """Combine copies: a strategy may use its updates up."""
    copies = [{name: tensor.clone() for name, tensor in update.items()} for update in updates]
    return strategy.combine(copies, examples)


def flowers(strategy: Strategy, updates: list[Arrays], examples: list[int]) -> Arrays:
    """What Flower's strategy makes of the same updates: it combines the users' whole arrays."""
    ensure_task_identity()
    start = constant(0.25)
    replies = []
    for update, num_examples in zip(updates, examples, strict=True):
        asked = Message(RecordDict({"config": ConfigRecord()}), 1, "train")
        trained = to_record({name: start[name] + update[name] for name in start})
        metrics = MetricRecord({"num-examples": num_examples, "train_loss": 0.0})
        replies.append(Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=asked))
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    return {name: tensor - start[name] for name, tensor in to_arrays(arrays).items()}


def flat(arrays: Arrays) -> torch.Tensor:
    return torch.cat([arrays[name].reshape(-1) for name in SHAPES]).double()


def assert_same(a: Arrays, b: Arrays, tolerance: float = 2e-6) -> None:
    for name in SHAPES:
        torch.testing.assert_close(a[name], b[name].to(a[name].dtype), rtol=0, atol=tolerance)
