"""From settings, or a strategy's name, to what is audited."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fedsim import build
from fedsim.audit.claims import Claims, Subject
from fedsim.audit.conduct import StrategyUnderTest, audit_conduct
from fedsim.audit.findings import Finding, not_applicable
from fedsim.audit.mechanism import MECHANISM_CHECKS, audit_mechanism
from fedsim.audit.pooled_rounds import PooledRounds
from fedsim.audit.rounds import stand_in
from fedsim.audit.strategy_rounds import StrategyRounds
from fedsim.build_pooled import pooled_cohort
from fedsim.build_privacy import central_spending, federated_setting, pooled_setting
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import CohortStrategy
from fedsim.config import RunConfig
from fedsim.data.dataset import UserTable
from fedsim.errors import ConfigError, PrivacyError
from fedsim.foreign import ForeignStrategy
from fedsim.jobs import jobs_of
from fedsim.models.initialize import exchanged_tensors
from fedsim.privacy.central import CentralGaussian
from fedsim.strategy import SumStrategy
from fedsim.streams import numpy_stream
from fedsim.training.user_level import UserLevelSteps
from fedsim.yaml_text import parse_yaml

STATED_CLAIMS = Claims(
    clipping_norm=1.0,
    noise_multiplier=1.0,
    cohort_size=20,
    noise_cohort_size=20,
    population_size=200,
    sampling="poisson",
    delta=200**-1.1,
    accountant="pld",
)
"""What a strategy is audited under when there is only its name."""

_FOREIGN = "fedsim refuses central DP with a strategy whose aggregation is not a sum"


def audit_runs(
    runs: dict[str, RunConfig], progress: Callable[[str], None] = lambda run_id: None
) -> dict[str, list[Finding]]:
    """Audit the runs of a file, and their baselines under user-level DP; none is trained.

    Args:
        runs: By their id.
        progress: Told each run's id before it is audited.

    Returns:
        The findings by run or baseline; none for a run without central DP.
    """
    findings: dict[str, list[Finding]] = {}
    for job in jobs_of({run_id: build.with_defaults(config) for run_id, config in runs.items()}):
        if job.baseline in ("plain", "example_level"):
            continue
        progress(job.run_id)
        subject = None
        if job.baseline == "user_level":
            subject = pooled_subject_of(job.config)
        elif job.config.privacy.central is not None:
            subject = subject_of(job.config)
        findings[job.run_id] = audit_mechanism(subject) if subject else []
    return findings


def subject_of(config: RunConfig) -> Subject:
    """Build the real parts of a run under central DP.

    Raises:
        ConfigError: The run has no central DP.
    """
    dataset = build.build_dataset(config)
    users = dataset.users("train")
    setting = federated_setting(config, len(users))
    if setting is None:
        raise ConfigError(
            "privacy.central: expected settings to audit, found none; add the section"
        )
    spending = central_spending(setting)
    model = build.build_model(config, len(dataset.label_names))
    build.check_private_model(config, model)
    cohort = build.build_cohort(config, users)
    return Subject(
        start=partial(StrategyRounds, partial(_sum_strategy, config), cohort),
        cohort=cohort,
        make_mechanism=lambda: replace(spending.mechanism),
        arrays={name: tensor.detach() for name, tensor in exchanged_tensors(model).items()},
        claims=Claims.of_run(setting, spending),
        seed=config.seed,
    )


def pooled_subject_of(config: RunConfig) -> Subject:
    """Build the real parts of the pooled baseline under user-level DP.

    Raises:
        ConfigError: The settings ask for none.
    """
    settings = config.centralized.user_level if config.centralized else None
    if settings is None:
        raise ConfigError(
            "centralized.user_level: expected settings to audit, found none; add the section"
        )
    dataset = build.build_dataset(config)
    users = dataset.users("train")
    setting = pooled_setting(settings, len(users), config)
    spending, model = central_spending(setting), build.build_model(config, len(dataset.label_names))
    cohort = pooled_cohort(settings, users, config.seed)
    return Subject(
        start=partial(PooledRounds, partial(UserLevelSteps, seed=config.seed), cohort),
        cohort=cohort,
        make_mechanism=lambda: replace(spending.mechanism),
        arrays={name: p.detach() for name, p in model.named_parameters() if p.requires_grad},
        claims=Claims.of_run(setting, spending),
        seed=config.seed,
    )


def audit_strategy(name: str, parameters: dict[str, Any], seed: int = 0) -> list[Finding]:
    """Audit a strategy by its name alone, on made-up users.

    Args:
        name: As ``strategy.name`` in a YAML file.
        parameters: Its own.
        seed: Of every draw.

    Returns:
        Under central DP what ``STATED_CLAIMS`` say, where that applies; then how it takes odd
        replies.
    """
    config = RunConfig.model_validate(
        {"name": "audit", "seed": seed, "strategy": {**parameters, "name": name}}
    )
    cohort = _made_up_cohort(seed)
    plain = partial(build.build_strategy, config, cohort, None)
    tested = StrategyUnderTest(plain, cohort, seed)
    return [*_private(config, cohort, plain()), *audit_conduct(tested)]


def parameters_of(texts: list[str]) -> dict[str, Any]:
    """Read a strategy's parameters from ``name=value`` each, the value in YAML.

    Examples:
        >>> parameters_of(["weighting=uniform", "server_learning_rate=1e-1"])
        {'weighting': 'uniform', 'server_learning_rate': 0.1}
    """
    parameters = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"parameter {text!r}: expected name=value, found no name and value; write it like "
                "server_learning_rate=0.5"
            )
        parameters[name] = parse_yaml(value)
    return parameters


def require_passed(findings: list[Finding]) -> None:
    """Raise PrivacyError if any check failed."""
    failed = [finding.name for finding in findings if finding.verdict == "FAIL"]
    if failed:
        raise PrivacyError(
            f"audit: expected all checks to pass, found {len(failed)} that fail "
            f"({'; '.join(dict.fromkeys(failed))}); mend what the table explains"
        )


def _private(
    config: RunConfig, cohort: CohortSampler, plain: CohortStrategy | ForeignStrategy
) -> list[Finding]:
    """Audit the strategy under the stated claims, unless it takes no central DP."""
    if not isinstance(plain, SumStrategy):
        return [not_applicable(name, _FOREIGN) for name in MECHANISM_CHECKS]
    claims = STATED_CLAIMS
    make_strategy = partial(_sum_strategy, config)
    subject = Subject(
        start=partial(StrategyRounds, make_strategy, cohort),
        cohort=cohort,
        make_mechanism=partial(claims.mechanism, config.seed),
        arrays=stand_in(config.seed),
        claims=claims,
        seed=config.seed,
    )
    try:
        make_strategy(cohort, subject.make_mechanism())
    except ConfigError as error:  # weights by examples, or a sum of its own
        return [not_applicable(name, f"fedsim refuses it: {error}") for name in MECHANISM_CHECKS]
    return audit_mechanism(subject)


def _sum_strategy(
    config: RunConfig, cohort: CohortSampler, mechanism: CentralGaussian
) -> SumStrategy:
    strategy = build.build_strategy(config, cohort, mechanism)
    if not isinstance(strategy, SumStrategy):  # build_strategy refuses it before
        raise ConfigError(
            f"strategy.name: expected a SumStrategy under privacy.central, found "
            f"{type(strategy).__name__}; derive it from fedsim.strategy.SumStrategy"
        )
    return strategy


def _made_up_cohort(seed: int) -> CohortSampler:
    num_users = STATED_CLAIMS.population_size
    sizes = numpy_stream(seed, "audit users").integers(1, 50, num_users)
    ids = tuple(f"user{index:03d}" for index in range(num_users))
    return CohortSampler(
        UserTable(ids, sizes), STATED_CLAIMS.cohort_size, STATED_CLAIMS.sampling, seed
    )
