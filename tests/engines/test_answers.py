"""Answers of nodes that fedsim would not give."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_flower import FakeFlower
from flower_runs import (
    CENTRAL_DP,
    SIMULATION,
    on_flower,
    settings,
)
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from fedsim.engines.pack import pack, unpack
from fedsim.reporter import Failure

pytestmark = pytest.mark.usefixtures("no_pauses")


def more_examples(content: RecordDict) -> None:
    content["metrics"]["num-examples"] += 1


def no_loss(content: RecordDict) -> None:
    del content["metrics"]["train_loss"]


def sum_of_a_block(content: RecordDict) -> None:
    """Which nobody would clip."""
    content["sum"] = content.pop("arrays")
    reported = {"num-examples": [1], "train_loss": [0.5], "update-norm": [0.0], "weight": 1.0}
    content["metrics"] = MetricRecord(reported)


def pickled_arrays(content: RecordDict) -> None:
    content["arrays"] = ArrayRecord(
        {
            name: Array("float32", array.shape, "numpy.ndarray", pickle.dumps(array.numpy()))
            for name, array in content["arrays"].items()
        }
    )


@pytest.mark.parametrize(
    ("tamper", "match"),
    [
        (more_examples, r"expected \d+ examples, as in the table of users"),
        (no_loss, "of one user, with a loss"),
        (sum_of_a_block, "of one user, with a loss, found"),
        (pickled_arrays, "expected arrays in NumPy's format, found ValueError"),
    ],
)
@pytest.mark.parametrize("changes", [{}, CENTRAL_DP], ids=["examples", "central_dp"])
def test_an_answer_that_fedsim_would_not_give_stops_the_run_and_names_the_user(
    changes: dict[str, Any], tamper: Callable[[RecordDict], None], match: str, tmp_path: Path
) -> None:
    class Tampering(FakeFlower):
        def _reply(self, message: Message, fate: str) -> Message:
            reply = super()._reply(message, fate)
            contents = unpack(reply.content)
            tamper(contents[-1])
            reply.content = pack(contents)
            return reply

    outcome = on_flower(settings(**changes), tmp_path, Tampering(SIMULATION))
    assert isinstance(outcome, Failure)
    assert outcome.exit_code == 5
    assert re.search(rf"round 1, user '.+' of SuperNode \d+: .*{match}", outcome.message)


def test_answers_of_another_release_are_refused(tmp_path: Path) -> None:
    class Other(FakeFlower):
        def _reply(self, message: Message, fate: str) -> Message:
            reply = super()._reply(message, fate)
            del reply.content["pack"]
            return reply

    outcome = on_flower(settings(), tmp_path, Other(SIMULATION))
    assert isinstance(outcome, Failure)
    assert "use the same release of fedsim" in outcome.message
