"""The ClientApp: trains the users that a message names, on this node's data."""

import copy
import functools
import json
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import fedsim
from fedsim import build
from fedsim.data.dataset import label_counts
from fedsim.engines.client_app import LocalClientApp
from fedsim.engines.exchange import user_of
from fedsim.engines.flower_grid import ROUNDS, TASK, UNRECEIVED
from fedsim.engines.holdings import (
    LABEL_COUNTS,
    LABELS,
    NUM_IMAGES,
    QUESTION,
    REASON,
    USERS,
    VERSION,
)
from fedsim.engines.pack import pack, unpack
from fedsim.engines.unit import Unit, execute
from fedsim.errors import FedsimError, first_line
from fedsim.flower_app.task import Task, check_states
from fedsim.flower_seam import to_arrays, to_record
from fedsim.training.trainer import Trainer

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell which train users this node holds."""
    try:
        task = Task.on_node(message.content.config_records[QUESTION], context.node_config)
        answer = _held(task)
    except FedsimError as error:
        answer = _reason(error)
    return Message(RecordDict({"answer": answer}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train users one after another; of one who can't be trained say why."""
    record = message.content.config_records[TASK]
    contents = _read_once(unpack(message.content))
    node_config = json.dumps(dict(context.node_config), sort_keys=True)
    try:
        trainer, local = _local_app(json.dumps(dict(record), sort_keys=True), node_config)
        answers = [_answer(trainer, local, message, content) for content in contents]
    except FedsimError as error:
        answers = [RecordDict({"error": _reason(error)}) for _ in contents]
    return Message(pack(answers), reply_to=message)


def _held(task: Task) -> ConfigRecord:
    dataset = build.build_dataset(task.config)
    users = dataset.users("train")
    return ConfigRecord(
        {
            USERS: list(users.ids),
            NUM_IMAGES: users.num_images.tolist(),
            LABELS: list(dataset.label_names),
            LABEL_COUNTS: label_counts(dataset, "train").tolist(),
            VERSION: fedsim.__version__,
        }
    )


@functools.lru_cache(maxsize=1)
def _local_app(record: str, node_config: str) -> tuple[Trainer, LocalClientApp]:
    """Build the model once in a process; a simulation's processes live as long as the run."""
    task = Task.on_node(ConfigRecord(json.loads(record)), json.loads(node_config))
    part = build.build_part(task.config)
    check_states(task, keeps=part is not None and part.state_copies > 0)
    trainer: Trainer = build.build_trainer(task.config, task.states, seed_is_known=task.deployed)
    return trainer, LocalClientApp(trainer)


def _answer(
    trainer: Trainer, local: LocalClientApp, message: Message, content: RecordDict
) -> RecordDict:
    """Train one user; the arrays are copied, since the next user trains in the same memory."""
    private = copy.copy(message)
    private.content = content
    unreceived: Any = content.pop(UNRECEIVED, None)
    if unreceived is not None:
        trainer.forget(user_of(private), unreceived[ROUNDS])
    try:
        reply = execute(local, Unit((private,), rule=None), {})
    except FedsimError as error:
        return RecordDict({"error": _reason(error)})
    for key, record in list(reply.content.array_records.items()):
        arrays = {name: tensor.clone() for name, tensor in to_arrays(record).items()}
        reply.content[key] = to_record(arrays)
    return reply.content


def _read_once(contents: list[RecordDict]) -> list[RecordDict]:
    """Turn arrays that came serialized into tensors, each record once for all who share it."""
    read: dict[int, Any] = {}
    for content in contents:
        for key, record in list(content.array_records.items()):
            if id(record) not in read:
                read[id(record)] = (record, to_record(to_arrays(record)))
            content[key] = read[id(record)][1]
    return contents


def _reason(error: FedsimError) -> ConfigRecord:
    return ConfigRecord({REASON: first_line(error)})  # no traceback leaves the node
