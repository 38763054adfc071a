import math

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsim.arrays import l2_norm, zeros_like
from fedsim.errors import EngineError
from fedsim.flower_seam import ensure_task_identity, to_record
from fedsim.streams import torch_stream
from fedsim.update_sum import ARRAYS, METRICS, FoldRule, UpdateSum, fold_replies

RECEIVED = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "scalar": torch.tensor(0.5)}


def instruction(block: int = 0) -> Message:
    ensure_task_identity()
    return Message(RecordDict({"config": ConfigRecord()}), 7, "train", group_id=f"1/{block}")


def reply(update: dict[str, torch.Tensor], num_examples: int = 1, block: int = 0) -> Message:
    trained = {name: RECEIVED[name] + update[name] for name in update}
    metrics = MetricRecord({"num-examples": num_examples, "train_loss": 1.0 / num_examples})
    return Message(
        RecordDict({ARRAYS: to_record(trained), METRICS: metrics}), reply_to=instruction(block)
    )


def random_update(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch_stream(seed, "update")
    return {k: scale * torch.randn(v.shape, generator=generator) for k, v in RECEIVED.items()}


USERS = st.tuples(st.integers(0, 99), st.integers(1, 30), st.floats(0.01, 100))


@given(
    st.lists(USERS, min_size=1, max_size=8),
    st.sampled_from(["uniform", "examples"]),
    st.floats(0.01, 10),
)
def test_sum_is_that_of_the_clipped_and_weighted_updates(users, weighting, clipping_norm) -> None:
    rule = FoldRule(weighting, clipping_norm)
    summed = UpdateSum(zeros_like(RECEIVED))
    expected = {name: np.zeros(t.shape) for name, t in RECEIVED.items()}
    weights = 0.0
    for seed, n, scale in users:
        update = random_update(seed, scale)
        summed.add(reply(update, n), RECEIVED, rule, "u")
        exact = {k: ((RECEIVED[k] + u) - RECEIVED[k]).double().numpy() for k, u in update.items()}
        norm = math.sqrt(sum((u**2).sum() for u in exact.values()))
        weight = n if weighting == "examples" else 1
        for name, u in exact.items():
            expected[name] += weight * u * min(1.0, clipping_norm / norm)
        weights += weight
    assert summed.weight == weights
    assert summed.num_examples == [n for _, n, _ in users]
    for name, total in summed.total.items():
        np.testing.assert_allclose(
            total.numpy(), expected[name], rtol=1e-4, atol=1e-3 * max(s for *_, s in users) * 1e-1
        )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e24])
def test_no_user_contributes_more_than_the_clipping_norm(scale: float) -> None:
    """Scalars of shape () are part of the norm, and clipped with the rest."""
    summed = UpdateSum(zeros_like(RECEIVED))
    summed.add(reply(random_update(1, scale)), RECEIVED, FoldRule("uniform", 0.5), "u")
    norm = l2_norm(summed.total.values())
    assert norm <= 0.5 * (1 + 1e-6)
    assert scale < 1 or norm == pytest.approx(0.5, rel=1e-5)
    assert scale < 1 or float(summed.total["scalar"].abs()) > 0


def test_a_zero_update_passes() -> None:
    summed = UpdateSum(zeros_like(RECEIVED))
    zero = {name: torch.zeros_like(t) for name, t in RECEIVED.items()}
    summed.add(reply(zero), RECEIVED, FoldRule("uniform", 0.5), "u")
    assert not any(t.any() for t in summed.total.values())
    assert summed.weight == 1


def test_folded_and_unfolded_replies_give_the_same_bits() -> None:
    """An engine that folds blocks, and a strategy that folds what an engine could not."""
    rule = FoldRule("examples", 1.0)
    blocks = [[(1, 3), (2, 1), (3, 7)], [(4, 2), (5, 2)], [(6, 9)]]
    singles = [
        reply(random_update(seed), n, block=number)
        for number, block in enumerate(blocks)
        for seed, n in block
    ]
    folded = []
    for number, block in enumerate(blocks):
        part = UpdateSum(zeros_like(RECEIVED))
        for seed, n in block:
            part.add(reply(random_update(seed), n), RECEIVED, rule, "u")
        folded.append(Message(part.to_content(), reply_to=instruction(number)))
    a, b = fold_replies(singles, RECEIVED, rule), fold_replies(folded, RECEIVED, rule)
    assert all(torch.equal(a.total[name], b.total[name]) for name in RECEIVED)
    assert (a.num_examples, a.train_loss, a.weight) == (b.num_examples, b.train_loss, b.weight)


def test_nobody_replied() -> None:
    summed = fold_replies([], RECEIVED, FoldRule("uniform"))
    assert summed.weight == 0
    assert not any(t.any() for t in summed.total.values())


@pytest.mark.parametrize(
    ("arrays", "found"),
    [
        ({"w": torch.ones(2, 2)}, "scalar"),
        ({"w": torch.ones(3), "scalar": torch.tensor(1.0)}, r"\(3,\)"),
        ({"w": torch.ones(2, 2).double(), "scalar": torch.tensor(1.0)}, "float64"),
        ({"w": torch.full((2, 2), float("nan")), "scalar": torch.tensor(1.0)}, "NaN.*w"),
        ({"w": torch.ones(2, 2), "scalar": torch.tensor(float("inf"))}, "NaN.*scalar"),
    ],
)
def test_updates_that_can_not_be_summed_are_named(arrays, found: str) -> None:
    metrics = MetricRecord({"num-examples": 1, "train_loss": 0.0})
    message = Message(
        RecordDict({ARRAYS: to_record(arrays), METRICS: metrics}), reply_to=instruction()
    )
    summed = UpdateSum(zeros_like(RECEIVED))
    with pytest.raises(EngineError, match=f"somebody.*{found}"):
        summed.add(message, RECEIVED, FoldRule("uniform"), where="somebody")


def test_an_error_reply_is_not_skipped() -> None:
    failed = Message(Error(1, "out of memory"), reply_to=instruction())
    with pytest.raises(EngineError, match="out of memory"):
        fold_replies([failed], RECEIVED, FoldRule("uniform"))


def test_a_rule_survives_its_journey() -> None:
    for rule in (FoldRule("uniform"), FoldRule("examples", 0.25)):
        assert FoldRule.from_record(rule.to_record()) == rule


def test_a_block_sum_survives_its_journey() -> None:
    part = UpdateSum(zeros_like(RECEIVED))
    part.add(reply(random_update(1), 4), RECEIVED, FoldRule("examples"), "u")
    back = UpdateSum.from_content(part.to_content())
    assert (back.num_examples, back.weight, back.update_norm) == ([4], 4.0, part.update_norm)
    assert all(torch.equal(back.total[k], part.total[k]) for k in RECEIVED)
