"""What one actor takes of a Ray cluster, and how many find room beside one another."""

from dataclasses import dataclass
from typing import Any

from fedsim.errors import EngineError

SECONDS_TO_FIND_ROOM = 30.0
"""How long to wait for a place before asking whether there ever will be one."""


@dataclass(frozen=True)
class Share:
    """What one actor takes.

    Attributes:
        cpus: Cores, or a fraction of one.
        gpus: GPUs, or a fraction of one.
        memory: Bytes; 0 if it does not matter.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0

    def options(self) -> dict[str, Any]:
        """Return the options with which an actor is made."""
        # Nothing is restarted by Ray: it would not say so, and the units that wait behind the one
        # that killed its actor would use up their chances with it.
        return {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "memory": self.memory or None,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
        }

    def num_in(self, resources: dict[str, float]) -> int:
        """Return how many actors fit into resources, as Ray names them.

        Examples:
            >>> Share(memory=3_000_000_000).num_in({"CPU": 8.0, "memory": 10e9})
            3
        """
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return min(int(resources.get(name, 0.0) / n + 1e-9) for name, n in amounts.items() if n)

    def check_fits(self, ray: Any) -> None:
        """Raise EngineError if none of the cluster's nodes could hold an actor, were it free."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(self.num_in(node) for node in nodes):
            names = ("CPU", "GPU", "memory")
            found = [{name: node.get(name, 0) for name in names} for node in nodes]
            raise EngineError(
                f"engine.workers: expected a node of Ray with room for an actor of {self.cpus} "
                f"CPUs, {self.gpus} GPUs and {self.memory / 1e9:.1f} GB, found {found}; lower "
                "engine.cpus_per_worker or engine.gpus_per_worker, or set engine.workers, with "
                "which memory is not looked at"
            )
