"""The ClientApp of ``flower_parity.py``, in a module of its own so that Ray's actors import it."""

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from parity_model import LABELS, make_model, read_users
from torch import nn

DATA_VARIABLE = "PARITY_DATA"  # environment variable with the data's file, for the actors

app = ClientApp()

Users = list[tuple[torch.Tensor, torch.Tensor]]


@cache
def actor_state() -> tuple[nn.Module, Users]:
    """Prepare an actor once."""
    torch.set_num_threads(1)
    model = make_model(LABELS, "").to(memory_format=torch.channels_last)
    return model, read_users(Path(os.environ[DATA_VARIABLE]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the node's user for one epoch of SGD."""
    model, users = actor_state()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    settings = message.content.config_records["config"]
    x, y = users[int(context.node_config["partition-id"])]
    optimizer = torch.optim.SGD(model.parameters(), lr=float(settings["lr"]))
    size = int(settings["batch-size"])
    order = torch.randperm(len(x))
    for start in range(0, len(x), size):
        rows = order[start : start + size]
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows]).backward()
        optimizer.step()
    reply = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"one": 1.0})}
    )
    return Message(content=reply, reply_to=message)
