"""What the tests audit: the real parts, or some of them replaced."""

from dataclasses import replace
from functools import partial

import torch

from fedsim.audit.build import STATED_CLAIMS
from fedsim.audit.claims import Subject
from fedsim.audit.findings import Finding
from fedsim.audit.pooled_rounds import PooledRounds
from fedsim.audit.rounds import stand_in
from fedsim.audit.strategy_rounds import StrategyRounds
from fedsim.cohort import CohortSampler
from fedsim.data.dataset import UserTable
from fedsim.privacy.central import AdaptiveClipping, CentralGaussian
from fedsim.streams import numpy_stream
from fedsim.training.user_level import UserLevelSteps
from fedsim_strategies.fedavg import FedAvg

ADAPTIVE = AdaptiveClipping(quantile=0.7, learning_rate=0.2)
USERS = UserTable(
    tuple(f"user{i:03d}" for i in range(200)), numpy_stream(0, "audit users").integers(1, 50, 200)
)


class SendsAlong(FedAvg):
    """Has a vector and a single number travel beside the model."""

    def sent_along(self, arrays):
        dtype = arrays["matrix" if "matrix" in arrays else "numbers"].dtype
        return {"beside.v": torch.zeros(150, dtype=dtype), "beside.x": torch.ones((), dtype=dtype)}


def make(strategy, cohort, mechanism):
    made = strategy(weighting="uniform")
    made.compose(cohort, mechanism)
    return made


def subject(
    mechanism=CentralGaussian, strategy=FedAvg, sampler=CohortSampler, **claimed
) -> Subject:
    """Return real parts, or planted ones, under the stated claims with some changed."""
    claims = replace(STATED_CLAIMS, **claimed)
    if claims.replaces:
        claims = replace(claims, accountant="rdp")
    cohort = sampler(USERS, claims.cohort_size, claims.sampling, seed=1)
    return Subject(
        start=partial(StrategyRounds, partial(make, strategy), cohort),
        cohort=cohort,
        make_mechanism=partial(claims.mechanism, 1, mechanism),
        arrays=stand_in(1),
        claims=claims,
        seed=1,
    )


def pooled_subject(
    mechanism=CentralGaussian, steps=UserLevelSteps, sampler=CohortSampler, **claimed
) -> Subject:
    """The same of the pooled baseline under user-level DP."""
    claims = replace(STATED_CLAIMS, **claimed)
    cohort = sampler(USERS, claims.cohort_size, claims.sampling, seed=1)
    return Subject(
        start=partial(PooledRounds, partial(steps, seed=1), cohort),
        cohort=cohort,
        make_mechanism=partial(claims.mechanism, 1, mechanism),
        arrays=stand_in(1),
        claims=claims,
        seed=1,
    )


def failed(findings: list[Finding]) -> set[str]:
    return {finding.name for finding in findings if finding.verdict == "FAIL"}
