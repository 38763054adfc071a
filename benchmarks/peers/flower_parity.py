"""One run of a plain Flower FedAvg app for ``parity.py``, in Flower's simulation on Ray."""

import os
import random
import tempfile
from functools import cache
from pathlib import Path

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # sockets on loopback only
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
}

import flower_parity_client as client
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from parity_model import LABELS, flat, make_model, run_parser


class UniformFedAvg(FedAvg):
    """Flower's FedAvg, told that every user counts as much; keeps the arrays of every round."""

    def __init__(self, cohort_size: int, num_users: int, initial: np.ndarray) -> None:
        super().__init__(
            fraction_train=cohort_size / num_users,
            min_train_nodes=cohort_size,
            min_available_nodes=num_users,
            fraction_evaluate=0.0,
            weighted_by_key="one",
        )
        self._cohort_size = cohort_size
        self.kept = [initial]

    def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
        """Average, and keep the result; a lost reply ends the run."""
        replies = list(replies)
        if len(replies) != self._cohort_size or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"round {server_round}: found {len(replies)} replies, some failed")
        arrays, metrics = super().aggregate_train(server_round, replies)
        state = arrays.to_torch_state_dict()
        self.kept.append(torch.cat([tensor.flatten() for tensor in state.values()]).numpy())
        return arrays, metrics


@cache
def num_users(path: Path) -> int:
    return len(client.read_users(path))


def main() -> None:
    parser = run_parser(__doc__)
    args = parser.parse_args()
    os.environ[client.DATA_VARIABLE] = str(args.data.resolve())
    population = num_users(args.data)
    model = make_model(LABELS, args.weights)
    strategy = UniformFedAvg(args.cohort_size, population, flat(model))
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        random.seed(args.seed)  # Flower draws its cohorts from the global generator
        settings = ConfigRecord({"lr": args.learning_rate, "batch-size": args.batch_size})
        record = ArrayRecord(model.state_dict())
        strategy.start(grid, record, num_rounds=args.rounds, train_config=settings)

    with tempfile.TemporaryDirectory(prefix="ray-") as ray_folder:
        run_simulation(
            server,
            client.app,
            population,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"address": "local", "num_cpus": 2, "_temp_dir": ray_folder},
            },
        )
    np.save(args.out, np.stack(strategy.kept))


if __name__ == "__main__":
    main()
