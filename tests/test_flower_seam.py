"""Fails loudly on a release of Flower whose internals the seam no longer fits."""

import pickle

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fedsim.flower_seam import LiveArray, ensure_task_identity, to_arrays, to_record

TENSORS = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(2.5), "n": torch.tensor([1, 2])}


def test_live_arrays_travel_without_a_copy() -> None:
    ensure_task_identity()
    record = to_record(TENSORS)
    message = Message(RecordDict({"arrays": record}), 1, MessageType.TRAIN)
    back = to_arrays(message.content.array_records["arrays"])
    assert all(back[name].data_ptr() == tensor.data_ptr() for name, tensor in TENSORS.items())


def test_a_live_array_is_what_flower_would_have_made() -> None:
    for tensor in TENSORS.values():
        live, plain = LiveArray(tensor), Array(tensor.numpy())
        assert (live.dtype, live.shape, live.stype) == (plain.dtype, plain.shape, plain.stype)
        assert live.data == plain.data
        assert isinstance(live, Array)


def test_numpy_is_a_private_writable_copy() -> None:
    live = LiveArray(TENSORS["w"])
    copy = live.numpy()
    copy[:] = -1
    assert float(TENSORS["w"].min()) == 0


def test_serialized_on_the_wire_and_back() -> None:
    record = to_record(TENSORS)
    proto = recorddict_to_proto(RecordDict({"arrays": record}))
    back = recorddict_from_proto(proto).array_records["arrays"]
    assert all(torch.equal(to_arrays(back)[name], t) for name, t in TENSORS.items())


def test_deflated_as_an_array_and_inflated() -> None:
    live = LiveArray(TENSORS["w"])
    inflated = Array.inflate(live.deflate(), live.children)
    np.testing.assert_array_equal(inflated.numpy(), TENSORS["w"].numpy())


def test_pickled() -> None:
    back = pickle.loads(pickle.dumps(to_record(TENSORS)))
    assert isinstance(back, ArrayRecord)
    assert all(torch.equal(to_arrays(back)[name], t) for name, t in TENSORS.items())


def test_writing_data_replaces_the_tensor() -> None:
    live = LiveArray(torch.zeros(2))
    live.data = Array(np.ones(2, dtype=np.float32)).data
    assert live.live.tolist() == [1, 1]


def test_messages_can_be_made_and_keep_an_identity_that_was_set() -> None:
    from flwr.supercore.task_identity import TaskIdentity

    ensure_task_identity()
    before = TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id
    assert None not in before
    ensure_task_identity()
    assert before == (TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id)


def test_an_array_out_of_memory_that_nobody_may_write_to_is_copied() -> None:
    buffers: list[pickle.PickleBuffer] = []
    sent = to_record({"w": torch.arange(3.0)})["w"]
    stream = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
    shared = [bytes(buffer.raw()) for buffer in buffers]  # read-only, as Ray's shared memory
    array = pickle.loads(stream, buffers=shared)
    array.live += 1
    assert torch.equal(array.live, torch.tensor([1.0, 2.0, 3.0]))
    assert bytes(buffers[0].raw()) == shared[0]
