"""Where a run's users are: their data and the Grid that reaches them."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flwr.serverapp import Grid
from torch import nn

from fedsim import build
from fedsim.build_engine import build_grid
from fedsim.config import RunConfig
from fedsim.data.dataset import FederatedDataset
from fedsim.engines.nodes import Tell
from fedsim.secret import Secret


@dataclass(frozen=True)
class Place:
    """A run on this machine.

    Attributes:
        numbers: Names what the run's numbers depend on, settings and data.
        states: Folder of what users keep between rounds.
        workers: Processes.
        tell: Told what there is to know about the run that stops nothing.
        unreceived: By user, the rounds since the last answer that came whose answers did not.
    """

    numbers: str
    states: Path
    workers: int
    tell: Tell
    unreceived: dict[str, list[int]]


class Runtime(Protocol):
    """Opens a run's data and starts its engine."""

    def dataset(self, config: RunConfig) -> FederatedDataset:
        """Open the data, as far as it is on this machine."""
        ...

    def grid(
        self, config: RunConfig, model: nn.Module, dataset: FederatedDataset, place: Place
    ) -> AbstractContextManager[Grid]:
        """Start the engine; leaving the context ends it."""
        ...

    def secret(self, config: RunConfig) -> Secret | None:
        """Draw what a new run's central noise and cohorts are functions of; None for the seed.

        A secret stays in the run's checkpoint, and whoever trains users is not told. Example-level
        noise is then drawn by them, of nothing that is known here.
        """
        ...


class _Here:
    """All data is on this machine, and the settings name the engine."""

    def dataset(self, config: RunConfig) -> FederatedDataset:
        return build.build_dataset(config)

    def grid(
        self, config: RunConfig, model: nn.Module, dataset: FederatedDataset, place: Place
    ) -> AbstractContextManager[Grid]:
        num_users = len(dataset.users("train"))
        return build_grid(config, model, num_users, place.workers, place.states)

    def secret(self, config: RunConfig) -> Secret | None:
        return None


HERE: Runtime = _Here()
