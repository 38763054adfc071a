"""Checks settings against the data before any work: everything is built once, every fault told."""

from typing import Any

import numpy as np

from fedsim import build, build_privacy
from fedsim.build_pooled import Method, build_pooled
from fedsim.cohort import CohortSampler, check_cohort_size
from fedsim.config import RunConfig
from fedsim.data.dataset import FederatedDataset, UserTable
from fedsim.errors import DataError, FedsimError, noted
from fedsim.models.initialize import exchanged_tensors
from fedsim.privacy.central import CentralGaussian
from fedsim.run_few_shot import check_few_shot


def check_splits(config: RunConfig, dataset: FederatedDataset) -> None:
    """Raise DataError unless train, val and test have users."""
    for split in ("train", "val", "test"):
        if not len(dataset.users(split)):
            raise DataError(
                f"data.source {config.data.source}: expected users in the splits train, val and "
                f"test, found none in {split}; split the data by user into all three"
            )


def faults_of(
    config: RunConfig,
    baseline: Method | None,
    dataset: FederatedDataset,
    ledger: dict[str, Any] | None = None,
) -> list[FedsimError]:
    """Return everything that stands in the way of a run.

    Args:
        config: The settings.
        baseline: Which of the centralized baselines; None for the federated run.
        dataset: The data.
        ledger: What a run that is resumed has spent; its budget ends it, and is no fault.
    """
    num_labels = len(dataset.label_names)
    faults: list[FedsimError] = []
    with noted(faults):
        model = build.build_model(config, num_labels)
        exchanged_tensors(model)
        build.check_outputs(config, model, num_labels)
        check_few_shot(config, model)
        if baseline is None:
            build.check_private_model(config, model)
            build.build_trainer(config)
        else:
            build_pooled(config, baseline, model, dataset, ledger)
    if baseline is None:
        users = dataset.users("train")
        faults += settings_faults(config, len(users))
        if not faults:
            with noted(faults):
                build_privacy.federated_privacy(config, users, ledger)
    return faults


def settings_faults(config: RunConfig, num_users: int) -> list[FedsimError]:
    """Return what is wrong between cohorts, privacy and strategy, for a population of a size."""
    setting = build_privacy.federated_setting(config, num_users)
    faults: list[FedsimError] = []
    mechanism = None
    if setting is not None:
        faults += build_privacy.central_faults(setting)
        # One without noise will do to ask the strategy.
        mechanism = CentralGaussian(setting.config.clipping_norm, 0.0, 1, 1, config.seed)
    else:
        with noted(faults):
            check_cohort_size(config.federated.cohort_size, num_users)
    size = min(config.federated.cohort_size, num_users)  # what is too large was noted above
    anybody = UserTable(tuple(map(str, range(num_users))), np.ones(num_users, dtype=np.int64))
    with noted(faults):
        sampler = CohortSampler(anybody, size, build_privacy.sampling_of(config), config.seed)
        build.build_strategy(config, sampler, mechanism)
    return faults
