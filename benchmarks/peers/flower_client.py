"""The ClientApp of the Flower peer, in a module of its own so that Ray's actors can import it."""

import os
from functools import cache
from pathlib import Path

import data
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from model import loss_function, make_model, to_tensors
from torch import nn
from workload import BATCH_SIZE, LEARNING_RATE, NUM_USERS

DATA_VARIABLE = "ROUND_TIME_DATA"  # environment variable with the data's folder, for the actors

app = ClientApp()


@cache
def actor_state() -> tuple[nn.Module, data.Bytes, data.Bytes]:
    """Prepare an actor once: the data mapped, one network that all its clients use in turn."""
    torch.set_num_threads(1)
    model = make_model().to(memory_format=torch.channels_last)
    images, labels = data.load(Path(os.environ[DATA_VARIABLE]))
    return model, images, labels


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the node's user; with more nodes than users several nodes hold the same images."""
    model, images, labels = actor_state()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    user = int(context.node_config["partition-id"]) % NUM_USERS
    x, y = to_tensors(images[user], labels[user])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for start in range(0, len(x), BATCH_SIZE):
        optimizer.zero_grad()
        batch = slice(start, start + BATCH_SIZE)
        loss_function(model(x[batch]), y[batch]).backward()
        optimizer.step()
    reply = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
    )
    return Message(content=reply, reply_to=message)
