"""The settings of a run: a frozen tree, checked before any work.

Field names are the words of the documentation; ``fedsim.config_file`` reads them from YAML. A
component (strategy, model) takes its own parameters beside ``name``: they are checked against its
signature when it is built.
"""

from fedsim.config.centralized import (
    CentralizedConfig,
    PooledConfig,
    PooledExampleLevelConfig,
    PooledUserLevelConfig,
)
from fedsim.config.data import DataConfig
from fedsim.config.evaluation import FewShotConfig
from fedsim.config.privacy import CentralPrivacyConfig, NoiseConfig
from fedsim.config.run import EngineConfig, RunConfig
from fedsim.config.section import Component

__all__ = [
    "CentralPrivacyConfig",
    "CentralizedConfig",
    "Component",
    "DataConfig",
    "EngineConfig",
    "FewShotConfig",
    "NoiseConfig",
    "PooledConfig",
    "PooledExampleLevelConfig",
    "PooledUserLevelConfig",
    "RunConfig",
]
