"""Runs on Flower's runtime: its simulation, or a deployment whose nodes hold the users."""

from contextlib import AbstractContextManager

import numpy as np
from flwr.serverapp import Grid
from torch import nn

from fedsim import build
from fedsim.build_engine import build_grid
from fedsim.config import RunConfig
from fedsim.data.dataset import FederatedDataset
from fedsim.data.image_dataset import ImageDataset
from fedsim.data.users_elsewhere import UsersElsewhere
from fedsim.engines.flower_grid import FlowerGrid, Remote
from fedsim.engines.holdings import all_users
from fedsim.engines.nodes import AnyNode, Owners
from fedsim.errors import ConfigError
from fedsim.flower_app.task import Task
from fedsim.models.initialize import exchanged_tensors
from fedsim.runtime import Place
from fedsim.secret import Secret


class FlowerRuntime:
    """Trains users on Flower's nodes; scores and records here.

    Args:
        grid: Flower's.
        num_nodes: SuperNodes that hold users of their own; 0 where all read the same data.
        seconds: How long a node may take for a message, and all of them to connect.
    """

    def __init__(self, grid: Grid, num_nodes: int, seconds: float) -> None:
        self._grid, self._num_nodes, self._seconds = grid, num_nodes, seconds
        self._owners: dict[str, Owners] = {}

    def dataset(self, config: RunConfig) -> FederatedDataset:
        """Open the data; in a deployment the nodes tell which train users there are.

        Raises:
            FedsimError: The settings need train images on the server, or the nodes don't fit.
        """
        here = build.build_dataset(config)
        if not self._num_nodes:
            return here
        _check_deployable(config)
        if not isinstance(here, ImageDataset):
            raise ConfigError(
                f"data.source: expected a file or folder of images in a deployment, found "
                f"{config.data.source}; convert the data first"
            )
        holdings = self._owners_of(config, here.label_names).wait_for(self._num_nodes)
        counts = np.sum([holding.label_counts for holding in holdings.values()], axis=0)
        return UsersElsewhere(here, all_users(holdings), counts)

    def grid(
        self, config: RunConfig, model: nn.Module, dataset: FederatedDataset, place: Place
    ) -> AbstractContextManager[Grid]:
        """Start what scores here, and send what trains to the nodes."""
        users = dataset.users("train")
        scoring = config.engine.model_copy(update={"name": "in_process"})
        here = config.model_copy(update={"engine": scoring})
        local = build_grid(here, model, len(users), place.workers, place.states)
        states = None if self._num_nodes else place.states
        remote = Remote(
            self._grid,
            self._owners_of(config, dataset.label_names)
            if self._num_nodes
            else AnyNode(self._grid),
            users,
            Task(config, states, bool(self._num_nodes)).to_record(place.numbers),
            self._seconds,
            may_lose=bool(self._num_nodes) or config.privacy.central is not None,
            tell=place.tell,
        )
        sizes = [t.numel() * t.itemsize for t in exchanged_tensors(model).values()]
        return FlowerGrid(remote, local, sum(sizes), place.unreceived)

    def secret(self, config: RunConfig) -> Secret | None:
        """Return a new one in a private deployment, whose sites all know the seed."""
        privacy = config.privacy
        private = privacy.central is not None or privacy.example_level is not None
        return Secret.new() if self._num_nodes and private else None

    def _owners_of(self, config: RunConfig, label_names: tuple[str, ...]) -> Owners:
        """Return who holds whom under some data settings."""
        key = config.data.model_dump_json()
        if key not in self._owners:
            question = Task(config, deployed=bool(self._num_nodes)).to_record()
            self._owners[key] = Owners(self._grid, question, label_names, self._seconds)
        return self._owners[key]


def _check_deployable(config: RunConfig) -> None:
    if config.data.partition.method != "by_user":
        raise ConfigError(
            f"data.partition.method: expected by_user in a deployment, where images are with their "
            f"users, found {config.data.partition.method}; leave data.partition out"
        )
    if config.centralized is not None:
        raise ConfigError(
            "centralized: expected no baseline in a deployment, whose server holds no train "
            "images, found one; leave the section out, or run it with fedsim run"
        )
