"""Checks settings against the data before any work: everything is built once, every fault told."""

from fedsim import build, build_privacy
from fedsim.build_pooled import Method, build_pooled
from fedsim.cohort import CohortSampler
from fedsim.config import RunConfig
from fedsim.data.dataset import FederatedDataset, UserTable
from fedsim.errors import DataError, FedsimError, noted
from fedsim.models.initialize import exchanged_tensors
from fedsim.privacy.central import CentralGaussian


def check_splits(config: RunConfig, dataset: FederatedDataset) -> None:
    """Raise DataError unless train, val and test have users."""
    for split in ("train", "val", "test"):
        if not len(dataset.users(split)):
            raise DataError(
                f"data.source {config.data.source}: expected users in the splits train, val and "
                f"test, found none in {split}; split the data by user into all three"
            )


def faults_of(
    config: RunConfig, baseline: Method | None, dataset: FederatedDataset
) -> list[FedsimError]:
    """Return everything that stands in the way of a run.

    Args:
        config: The settings.
        baseline: Which of the centralized baselines; None for the federated run.
        dataset: The data.
    """
    num_labels = len(dataset.label_names)
    faults: list[FedsimError] = []
    with noted(faults):
        model = build.build_model(config, num_labels)
        exchanged_tensors(model)
        build.check_outputs(config, model, num_labels)
        if baseline is None:
            build.check_private_model(config, model)
            build.build_trainer(config)
        else:
            build_pooled(config, baseline, model, dataset)
    if baseline is None:
        faults += _federated_faults(config, dataset.users("train"))
    return faults


def _federated_faults(config: RunConfig, users: UserTable) -> list[FedsimError]:
    setting = build_privacy.federated_setting(config, len(users))
    faults = build_privacy.central_faults(setting) if setting else []
    with noted(faults):
        build.build_cohort(config, users)
    mechanism = None
    if setting is not None:  # one without noise will do to ask the strategy
        mechanism = CentralGaussian(setting.config.clipping_norm, 0.0, 1, 1, config.seed)
    with noted(faults):
        anybody = CohortSampler(users, 1, "fixed_size", config.seed)
        build.build_strategy(config, anybody, mechanism)
    if not faults:
        with noted(faults):
            build_privacy.federated_privacy(config, users)
    return faults
