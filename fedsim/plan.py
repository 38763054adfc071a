"""What runs will spend and how large they are, before any of them trains."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedsim import build
from fedsim.build_pooled import settings_of
from fedsim.build_privacy import (
    CentralSetting,
    central_spending,
    federated_setting,
    pooled_example_spending,
    pooled_setting,
    sampling_of,
)
from fedsim.check import settings_faults
from fedsim.cohort_strategy import CohortStrategy
from fedsim.config import PooledExampleLevelConfig, PooledUserLevelConfig, RunConfig
from fedsim.data.dataset import UserTable
from fedsim.data.synthetic import POPULATION_SIZE
from fedsim.data.synthetic_labels import COARSE_NAMES, FINE_NAMES
from fedsim.errors import FedsimError, noted, raise_together
from fedsim.jobs import Job, jobs_of
from fedsim.kept_by_users import client_states_mb
from fedsim.models.initialize import exchanged_tensors
from fedsim.privacy.ledger import ExampleLedger
from fedsim.privacy.spending import PrivacySpending
from fedsim.strategy import SumStrategy

Entry = dict[str, Any]

_CENTRAL_KEYS = (
    "noise_cohort_size", "clipping_norm", "noise_multiplier", "noise_multiplier_as_run",
    "noise_stddev_sum", "noise_stddev_mean", "delta", "delta_as_run", "accountant",
    "neighboring", "epsilon_as_run", "epsilon_at_noise_cohort", "budget",
)  # fmt: skip


def plan_runs(
    runs: dict[str, RunConfig], progress: Callable[[str], None] = lambda run_id: None
) -> list[Entry]:
    """Return one entry per run, and one per private centralized baseline of its settings.

    No images are read: a data set tells how many users and images it has. Nothing is drawn of the
    source ``synthetic``: it has ``data.population_size`` train users, or FLAIR's.

    Args:
        runs: By id.
        progress: Told which run comes next; calibrating its noise can take seconds.

    Raises:
        FedsimError: Tells every fault of every run.
    """
    runs = {run_id: build.with_defaults(config) for run_id, config in runs.items()}
    faults: list[FedsimError] = []
    for config in runs.values():
        with noted(faults):
            faults += settings_faults(config, _num_users(config))
    raise_together(faults)
    entries = []
    for job in jobs_of(runs):
        if job.baseline == "plain":  # it spends nothing
            continue
        progress(job.run_id)
        entry = _federated_entry(job) if job.baseline is None else _pooled_entry(job)
        entries.append({"run_id": job.run_id, **entry})
    return entries


def _train_users(config: RunConfig) -> UserTable | None:
    """Return the counted users; None where they would have to be drawn."""
    if config.data.source == "synthetic":
        return None
    return build.build_dataset(config).users("train")


def _num_users(config: RunConfig) -> int:
    users = _train_users(config)
    return len(users) if users is not None else config.data.population_size or POPULATION_SIZE


def _federated_entry(job: Job) -> Entry:
    config = job.config
    federated, num_users = config.federated, _num_users(config)
    entry: Entry = {
        "population_size": num_users,
        "cohort_size": federated.cohort_size,
        "sampling_rate": federated.cohort_size / num_users,
        "sampling": sampling_of(config),
        "num_rounds": federated.num_rounds,
        **dict.fromkeys(_CENTRAL_KEYS),
        "assumptions": _data_assumptions(config),
    }
    setting = federated_setting(config, num_users)
    if setting is not None:
        _add_central(entry, setting)
    entry["example_level"] = _example_level(config)
    return entry | _sizes(config, num_users)


def _pooled_entry(job: Job) -> Entry:
    """Return the entry of a private baseline."""
    config, settings = job.config, settings_of(job.config, job.baseline or "plain")
    entry: Entry = {"sampling": "poisson", **dict.fromkeys(_CENTRAL_KEYS)}
    entry["assumptions"] = _data_assumptions(config)
    if isinstance(settings, PooledUserLevelConfig):
        setting = pooled_setting(settings, _num_users(config), config)
        entry |= {
            "population_size": setting.num_users,
            "cohort_size": setting.cohort_size,
            "sampling_rate": setting.cohort_size / setting.num_users,
            "num_rounds": setting.num_releases,
        }
        _add_central(entry, setting)
    elif isinstance(settings, PooledExampleLevelConfig):
        users = _train_users(config)
        if users is None:
            entry["assumptions"].append("epsilon depends on the number of images")
            return entry
        num_images = int(users.num_images.sum())
        spending = pooled_example_spending(settings, num_images)
        card = spending.card(settings.epochs, 0)["example_level"]
        entry |= {
            "population_size": num_images,
            "num_rounds": card["num_releases"],
            "example_level": card,
        }
    return entry


def _add_central(entry: Entry, setting: CentralSetting) -> None:
    """Add what central DP releases and spends over all rounds."""
    spending = central_spending(setting)
    mechanism = spending.mechanism
    card = PrivacySpending(spending, None).card(setting.num_releases, 0)["central"]
    card["delta"] = card["delta_at_noise_cohort"]
    for key in _CENTRAL_KEYS:
        infinite = isinstance(card[key], float) and math.isinf(card[key])
        entry[key] = None if infinite else card[key]
    entry["assumptions"] += spending.unmet_assumptions()
    if mechanism.noise_multiplier == 0:
        entry["assumptions"].append("no noise is added: epsilon is infinite, written as null")
    elif mechanism.adaptive is not None:
        entry["assumptions"].append("noise_stddev is the first round's: the clipping norm adapts")


def _data_assumptions(config: RunConfig) -> list[str]:
    if config.data.source != "synthetic":
        return []
    given = config.data.population_size is not None
    source = "data.population_size" if given else f"FLAIR's {POPULATION_SIZE:,} train users"
    return [f"population_size is taken from {source}, not counted"]


def _example_level(config: RunConfig) -> Entry | None:
    """Return what users will spend who are drawn as often as is to be expected."""
    private, users = config.privacy.example_level, _train_users(config)
    if private is None:
        return None
    federated = config.federated
    if users is None:
        return {"epsilon_max": None, "epsilon_max_reason": "it depends on the users' images"}
    ledger = ExampleLedger(
        users.num_images,
        batch_size=federated.local.batch_size,
        local_epochs=federated.local.epochs,
        **private.model_dump(),
    )
    times = math.ceil(federated.num_rounds * federated.cohort_size / len(users))
    everybody = np.arange(len(users)).tolist()
    for _ in range(times):
        ledger.observe(everybody)
    return {
        "participations": times,
        "epsilon_max": ledger.largest_epsilon(),
        "delta": private.delta,
        "noise_multiplier": private.noise_multiplier,
        "max_grad_norm": private.max_grad_norm,
        "accountant": private.accountant,
    }


def _sizes(config: RunConfig, num_users: int) -> Entry:
    """Return the size of what travels, of what the server holds at a time, of what users keep."""
    strategy = build.build_plain_strategy(config)
    ours = strategy if isinstance(strategy, CohortStrategy) else None
    arrays = exchanged_tensors(build.build_model(config, _num_labels(config)))
    model = sum(tensor.numel() * tensor.element_size() for tensor in arrays.values())
    beside = ours.checked_sent_along(arrays, 1) if ours else {}
    update = model + sum(tensor.numel() * tensor.element_size() for tensor in beside.values())
    return {
        "num_parameters": sum(tensor.numel() for tensor in arrays.values()),
        "update_mb": update / 1e6,
        # Sums are folded as replies come; any other strategy holds every reply of a round.
        "replies_held_mb": update
        / 1e6
        * (1 if isinstance(strategy, SumStrategy) else config.federated.cohort_size),
        "client_states_mb": client_states_mb(config, num_users, model / 1e6),
    }


def _num_labels(config: RunConfig) -> int:
    if config.data.source == "synthetic":
        return len(COARSE_NAMES if config.data.labels == "coarse" else FINE_NAMES)
    return len(build.build_dataset(config).label_names)
