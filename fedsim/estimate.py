"""About how long runs will take and what they will need."""

import json
import math
from dataclasses import dataclass

from fedsim import build
from fedsim.config import RunConfig
from fedsim.data.dataset import FederatedDataset, num_examples
from fedsim.data.feature_store import BLOCK
from fedsim.errors import FedsimError
from fedsim.jobs import Job
from fedsim.kept_by_users import client_states_mb
from fedsim.models.initialize import exchanged_tensors
from fedsim.pace import UNKNOWN, Pace, measure
from fedsim.peak_memory import peak_bytes

_SECONDS_TO_START = 4.0  # a process, its checks, the intervals on test
_PRIVATE_FACTOR = 2.0  # what per-example or per-user gradients cost beside plain ones
_ARRAYS_IN_A_CHECKPOINT = 4  # the model, the best one, and what a server optimizer keeps


@dataclass(frozen=True)
class Cost:
    """What a run costs.

    Attributes:
        seconds: On one core; NaN where it could not be measured.
        disk_mb: Of its folder, with all that users may come to keep there.
    """

    seconds: float
    disk_mb: float


def estimate_costs(jobs: list[Job]) -> dict[str, Cost]:
    """Return each run's cost by its id; runs that train alike are measured once.

    Features that runs share are the first one's to compute.
    """
    paces: dict[str, Pace] = {}
    computed: set[str] = set()
    sizes: dict[str, int] = {}
    costs = {}
    for job in jobs:
        config = build.with_defaults(job.config)
        dataset = build.build_dataset(config)
        alike = _what_pace_depends_on(config)
        if alike not in paces:
            try:
                paces[alike] = measure(config, dataset)
            except FedsimError:  # the run itself will say what is wrong
                paces[alike] = UNKNOWN
            arrays = exchanged_tensors(build.build_model(config, len(dataset.label_names)))
            sizes[alike] = sum(tensor.numel() * tensor.element_size() for tensor in arrays.values())
        pace = paces[alike]
        seconds = _seconds(job, config, dataset, pace)
        if pace.shared_as not in computed:
            seconds += _seconds_for_features(job, config, dataset, pace)
        if pace.shared_as is not None:
            computed.add(pace.shared_as)
        model_mb, num_users = sizes[alike] / 1e6, len(dataset.users("train"))
        states_mb = 0.0 if job.baseline else client_states_mb(config, num_users, model_mb)
        costs[job.run_id] = Cost(seconds, _ARRAYS_IN_A_CHECKPOINT * model_mb + states_mb)
    return costs


def _what_pace_depends_on(config: RunConfig) -> str:
    federated, private = config.federated, config.privacy.example_level is not None
    parts = [part.model_dump() for part in (config.data, config.model, federated.local)]
    alike = [*parts, federated.cohort_size, config.strategy.name, private]
    return json.dumps(alike, default=str)


def memory_mb() -> float:
    """Return the most memory that this process has held so far, in 1e6 bytes.

    It has built every part of a run, so a process that trains one needs about as much.
    """
    return peak_bytes() / 1e6


def _seconds(job: Job, config: RunConfig, dataset: FederatedDataset, pace: Pace) -> float:
    sizes = {split: num_examples(dataset, split) for split in ("train", "val", "test")}
    scored = min(config.evaluation.num_val_images or sizes["val"], sizes["val"])
    if job.baseline is None:
        training = _images_trained_on(config, dataset) * config.federated.local.epochs * pace.train
    else:
        training = job.num_rounds * sizes["train"] * pace.pooled
        training *= 1.0 if job.baseline == "plain" else _PRIVATE_FACTOR
    times_scored = job.num_rounds / config.evaluation.every + 1
    return _SECONDS_TO_START + training + (times_scored * scored + sizes["test"]) * pace.score


def _seconds_for_features(
    job: Job, config: RunConfig, dataset: FederatedDataset, pace: Pace
) -> float:
    missing = dict(pace.num_missing)
    if missing and job.baseline is None:  # each user's images are in blocks of neighbours'
        drawn = config.federated.num_rounds * config.federated.cohort_size
        touched = _images_trained_on(config, dataset) + drawn * (BLOCK - 1)
        missing["train"] = min(missing["train"], math.ceil(touched))
    return sum(missing.values()) * pace.compute_features


def _images_trained_on(config: RunConfig, dataset: FederatedDataset) -> float:
    """Return how many images all rounds train on, each as often as its user is drawn."""
    users, federated = dataset.users("train"), config.federated
    return float(federated.num_rounds * federated.cohort_size * users.num_images.mean())
