"""Brings messages' arrays to the device where a model trains, and its replies' back."""

import copy

import torch
from flwr.app import ArrayRecord, Message, RecordDict

from fedsim.flower_seam import to_arrays, to_record
from fedsim.update_sum import ARRAYS


def sent_to(device: torch.device, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return messages with their arrays on a device; a record that they share is copied once."""
    moved: dict[int, ArrayRecord] = {}
    there = []
    for message in messages:
        record = message.content.array_records[ARRAYS]
        if id(record) not in moved:
            arrays = to_arrays(record)
            moved[id(record)] = to_record({name: a.to(device) for name, a in arrays.items()})
        copied = copy.copy(message)
        copied.content = RecordDict({**message.content, ARRAYS: moved[id(record)]})
        there.append(copied)
    return tuple(there)


def back_on_cpu(reply: Message) -> Message:
    """Bring a reply's arrays to the CPU, where all that is not a client works."""
    if not reply.has_error():
        for key, record in list(reply.content.array_records.items()):
            arrays = to_arrays(record)
            if any(array.device.type != "cpu" for array in arrays.values()):
                reply.content[key] = to_record({name: a.cpu() for name, a in arrays.items()})
    return reply
