"""Builds the engine: where a run's users are trained and scored."""

import functools
from pathlib import Path

import numpy as np
from flwr.clientapp import ClientApp
from torch import nn

from fedsim.arrays import Arrays
from fedsim.build import (
    build_client_app,
    build_dataset,
    build_part,
    build_plain_strategy,
    shared_dataset,
)
from fedsim.cohort_strategy import CohortStrategy
from fedsim.config import RunConfig
from fedsim.data.dataset import num_examples
from fedsim.engines.in_process import InProcessGrid
from fedsim.engines.user_grid import UserGrid
from fedsim.errors import EngineError
from fedsim.models.initialize import exchanged_tensors


def build_grid(
    config: RunConfig, model: nn.Module, num_users: int, workers: int, states: Path | None = None
) -> UserGrid:
    """Make the engine.

    Args:
        config: The settings.
        model: What is trained.
        num_users: Of the train split.
        workers: Processes, where this machine's cores are shared out.
        states: The folder of what users keep between rounds.
    """
    arrays, strategy = exchanged_tensors(model), build_plain_strategy(config)
    beside = strategy.checked_sent_along(arrays, 1) if isinstance(strategy, CohortStrategy) else {}
    travelling = {**arrays, **beside}
    if config.engine.name == "ray":
        return _ray_grid(config, travelling, num_users, states)
    return InProcessGrid(
        functools.partial(build_client_app, config, states, shared_dataset(config)),
        travelling,
        num_users=num_users,
        num_workers=workers,
    )


def _ray_grid(
    config: RunConfig, travelling: Arrays, num_users: int, states: Path | None
) -> UserGrid:
    from fedsim.engines.ray_grid import RayGrid
    from fedsim.engines.ray_room import Share
    from fedsim.engines.ray_trial import Trial

    engine, dataset = config.engine, build_dataset(config)
    users = dataset.users("train")
    num_images = sum(num_examples(dataset, split) for split in ("train", "val", "test"))
    decoded = num_images * config.data.image_size**2 * 3
    trial = Trial(
        functools.partial(build_client_app, config),
        users.ids[int(np.argmax(users.num_images))],
        travelling,
        bytes_beside=min(decoded, config.data.cache_mb * 2**20),
    )
    return RayGrid(
        functools.partial(_app_elsewhere, config, states and states.absolute()),
        num_users=num_users,
        address=engine.address,
        share=Share(engine.cpus_per_worker or 1.0, engine.gpus_per_worker or 0.0),
        num_actors=engine.workers,
        trial=trial,
    )


def _app_elsewhere(config: RunConfig, states: Path | None) -> ClientApp:
    """Make the ClientApp, perhaps on another machine.

    Raises:
        EngineError: Users keep something between rounds, and the run's folder is not to be seen.
    """
    if states is not None and not states.parent.is_dir():
        part = build_part(config)
        if part is not None and part.state_copies:
            raise EngineError(
                f"{states.parent}: expected the run's folder on each machine of the cluster, since "
                f"users keep something between rounds with {config.strategy.name}, found none; "
                "choose an --out on a file system that the machines share"
            )
    return build_client_app(config, states)
