"""What a server tells a node besides the messages to users, and what the node makes of it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord

from fedsim import __version__
from fedsim.config import EngineConfig, RunConfig
from fedsim.errors import ConfigError, first_line

_SETTINGS, _STATES, _RUN, _DEPLOYED = "settings", "states", "run", "deployed"

DATA, STATES = "data", "states"
"""Keys of a SuperNode's ``--node-config``: its own file, and a folder for its users' states."""


@dataclass(frozen=True)
class Task:
    """What is to be done on a node; the same for all messages of a run.

    Attributes:
        config: The run's settings.
        states: Folder of what users keep between rounds, for nodes on the server's machine.
        deployed: Nodes hold users of their own, whose images nobody else has.
    """

    config: RunConfig
    states: Path | None = None
    deployed: bool = False

    def to_record(self, numbers: str = "") -> ConfigRecord:
        """Return the form in which it travels.

        Args:
            numbers: Names what the run's numbers depend on: runs in which that differs keep
                different states of users.
        """
        settings = json.dumps(self.config.model_dump(), allow_nan=False)
        states = str(self.states.absolute()) if self.states else ""
        return ConfigRecord(
            {_SETTINGS: settings, _STATES: states, _RUN: numbers, _DEPLOYED: self.deployed}
        )

    @classmethod
    def on_node(cls, record: ConfigRecord, node_config: Mapping[str, Any]) -> "Task":
        """Read it on a node, whose own data takes the place of the server's.

        A node with data of its own keeps its users' states in its own folder or nowhere, and
        features of their images, if the settings have them kept, in the default folder: a path that
        the server names means nothing there.

        Raises:
            ConfigError: The settings are not those of this release, or ask for example-level DP
                as if all nodes read the same data.
        """
        try:
            config = RunConfig.model_validate(json.loads(str(record[_SETTINGS])))
            deployed = bool(record[_DEPLOYED])
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"settings from the server: expected those of fedsim {__version__}, as on this "
                f"node, found others ({first_line(error)}); install the same release on every "
                "machine"
            ) from error
        if DATA not in node_config:
            states = str(record[_STATES])
            return cls(config, Path(states) if states else None, deployed)
        if config.privacy.example_level is not None and not deployed:
            raise ConfigError(
                "num-nodes: expected how many SuperNodes there are, in the run config, where they "
                f"have {DATA} of their own and train under example-level DP, found 0, with which "
                "the noise is a function of the seed; set it"
            )
        data = config.data.model_copy(update={"source": str(node_config[DATA])})
        folder = node_config.get(STATES)
        # A digest of what came from elsewhere, which is no path here.
        run = hashlib.sha256(str(record[_RUN]).encode()).hexdigest()[:16]
        own = Path(str(folder)) / run if folder else None
        engine = config.engine
        if engine.feature_cache is not None:
            default = EngineConfig().feature_cache
            engine = engine.model_copy(update={"feature_cache": default})
        return cls(config.model_copy(update={"data": data, "engine": engine}), own, deployed)


def check_states(task: Task, *, keeps: bool) -> None:
    """Raise ConfigError where users keep something between rounds and there is no place."""
    if keeps and task.states is None:
        raise ConfigError(
            f"node config: expected {STATES}=FOLDER, where users of {task.config.strategy.name} "
            f"keep what they need between rounds, found none; start the SuperNode with "
            f"--node-config '{STATES}=\"/folder\"' besides {DATA}"
        )
