"""How strategies take odd replies: our own, Flower's, and some with planted faults."""

from functools import partial

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp import strategy as flower
from subjects import USERS, failed

from fedsim.audit.conduct import StrategyUnderTest, audit_conduct
from fedsim.cohort import CohortSampler
from fedsim.flower_seam import to_arrays, to_record
from fedsim.foreign import ForeignStrategy
from fedsim.strategy import SumStrategy
from fedsim_strategies.fedadam import FedAdam
from fedsim_strategies.fedavg import FedAvg

COHORT = CohortSampler(USERS, 20, "poisson", seed=1)


def under_test(strategy, **parameters) -> StrategyUnderTest:
    return StrategyUnderTest(partial(composed, strategy, **parameters), COHORT, seed=1)


def composed(strategy, **parameters):
    made = strategy(**parameters)
    if isinstance(made, SumStrategy):
        made.compose(COHORT)
        return made
    return ForeignStrategy(made, COHORT, seed=1)


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_fedsims_own_strategies_pass(strategy, weighting) -> None:
    assert failed(audit_conduct(under_test(strategy, weighting=weighting))) == set()


@pytest.mark.parametrize(
    "strategy", [flower.FedAvg, flower.FedAdam, flower.FedMedian, flower.FedTrimmedAvg, flower.Krum]
)
def test_flowers_strategies_pass(strategy) -> None:
    findings = audit_conduct(under_test(strategy))
    assert failed(findings) == set(), findings


class FirstCounts(flower.FedAvg):
    """Takes the reply that comes first."""

    def aggregate_train(self, server_round, replies):
        first = next(iter(replies), None)
        return (first.content["arrays"], MetricRecord()) if first else (None, None)


class NeedsAll(flower.FedAvg):
    """Reads every reply's content, also where there is none."""

    def aggregate_train(self, server_round, replies):
        return [reply.content["arrays"] for reply in replies][-1], MetricRecord()


class FirstIsNew(SumStrategy):
    """Divides by the norm of the update."""

    def server_step(self, round_num, arrays, update):
        norm = float(sum(u.square().sum() for u in update.values()))
        return {name: a + update[name] * (1 / norm) for name, a in arrays.items()}


class HidesNan(FedAvg):
    """Turns NaN into zero before anybody sees it."""

    def aggregate_train(self, server_round, replies):
        for reply in replies:
            for tensor in to_arrays(reply.content["arrays"]).values():
                tensor.nan_to_num_()
        return super().aggregate_train(server_round, replies)


class Forgets(FedAvg):
    """Returns no arrays when nobody replies."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return (arrays if replies else to_record({})), metrics


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (FirstCounts, {"order of replies", "missing replies: one is an error"}),
        (
            NeedsAll,
            {"order of replies", "missing replies: one is an error", "missing replies: all"},
        ),
        (FirstIsNew, {"zero updates", "missing replies: all"}),
        (HidesNan, {"NaN updates", "missing replies: one is an error"}),
    ],
)
def test_a_planted_fault_is_seen(strategy, expected) -> None:
    findings = audit_conduct(under_test(strategy))
    assert failed(findings) == expected, findings


def test_what_a_strategy_returns_is_checked() -> None:
    findings = {finding.name: finding for finding in audit_conduct(under_test(Forgets))}
    assert "difference in ['matrix'" in findings["missing replies: all"].measured


def test_made_up_updates_are_the_users_own_and_of_norm_1() -> None:
    strategy = under_test(FedAvg)
    answers = [strategy.trained(USERS.ids[index]) for index in (3, 4)]
    norms = [
        np.sqrt(sum(float(t.double().square().sum()) for t in answer.update.values()))
        for answer in answers
    ]
    assert norms == pytest.approx([1.0, 1.0], rel=1e-6)
    assert not np.allclose(answers[0].update["vector"], answers[1].update["vector"])
    assert [answer.num_examples for answer in answers] == USERS.num_images[3:5].tolist()
