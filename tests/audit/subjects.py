"""What the tests audit: the real parts, or some of them replaced."""

from dataclasses import replace
from functools import partial

from fedsim.audit.build import STATED_CLAIMS
from fedsim.audit.claims import Subject
from fedsim.audit.findings import Finding
from fedsim.audit.rounds import stand_in
from fedsim.cohort import CohortSampler
from fedsim.data.dataset import UserTable
from fedsim.privacy.central import AdaptiveClipping, CentralGaussian
from fedsim.streams import numpy_stream
from fedsim_strategies.fedavg import FedAvg

ADAPTIVE = AdaptiveClipping(quantile=0.7, learning_rate=0.2)
USERS = UserTable(
    tuple(f"user{i:03d}" for i in range(200)), numpy_stream(0, "audit users").integers(1, 50, 200)
)


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
        make_strategy=partial(make, strategy),
        cohort=cohort,
        make_mechanism=partial(claims.mechanism, 1, mechanism),
        arrays=stand_in(1),
        claims=claims,
        seed=1,
    )


def failed(findings: list[Finding]) -> set[str]:
    return {finding.name for finding in findings if finding.verdict == "FAIL"}
