"""Peer: Flower's simulation on Ray (flwr 1.42), a node per user, an actor per processor.

It calls ``flwr.simulation.run_simulation``: deprecated in favour of ``flwr run``, but that starts
the very same engine behind a SuperLink, so this is Flower at its fastest.
"""

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Read when flwr and ray are imported: no telemetry, no look for updates, sockets on loopback only;
# Ray's actors run at the usual priority instead of nice 15, and are not ended when other programs
# fill the memory; and they keep freed memory rather than return it (a tenth of a round).
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483647",
}

import flower_client
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from model import make_model
from protocol import Channel
from workload import COHORT_SIZE

FOREVER = 1_000_000_000  # rounds; the parent says when to stop


class EndRequestedError(Exception):
    """The parent wants no more rounds: the only way out of ``Strategy.start``."""


class GatedFedAvg(FedAvg):
    """Flower's FedAvg, held before every round until the parent asks for it."""

    def __init__(self, channel: Channel, **settings: Any) -> None:
        super().__init__(**settings)
        self._channel = channel
        self._received = ArrayRecord()
        self._start = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sleep until the round may start, then draw the cohort as FedAvg does."""
        if not self._channel.wait():
            raise EndRequestedError
        self._received = arrays
        self._start = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average as FedAvg does, then report the round."""
        replies = list(replies)
        reasons = [reply.error.reason for reply in replies if reply.has_error()]
        arrays, metrics = super().aggregate_train(server_round, replies)
        seconds = time.perf_counter() - self._start
        if reasons or arrays is None or len(replies) != COHORT_SIZE:
            raise RuntimeError(
                f"round {server_round}: expected {COHORT_SIZE} trained clients, found "
                f"{len(replies)} replies of which {len(reasons)} failed: {reasons[:1]}"
            )
        moved = _flatten(arrays) - _flatten(self._received)
        self._channel.report(seconds, moved.norm().item())
        return arrays, metrics


def _flatten(arrays: ArrayRecord) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in arrays.to_torch_state_dict().values()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--actors", type=int, default=2)
    args = parser.parse_args()

    channel = Channel()
    os.environ[flower_client.DATA_VARIABLE] = str(args.data.resolve())
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = GatedFedAvg(
            channel,
            fraction_train=COHORT_SIZE / args.nodes,
            min_train_nodes=COHORT_SIZE,
            min_available_nodes=args.nodes,
            fraction_evaluate=0.0,
        )
        channel.ready(
            torch=torch.__version__,
            flwr=version("flwr"),
            ray=version("ray"),
            layout="channels-last",
            threads=1,
            processes=args.actors,
            nodes=args.nodes,
        )
        strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=FOREVER)

    with (
        tempfile.TemporaryDirectory(prefix="ray-") as ray_folder,
        contextlib.suppress(EndRequestedError),
    ):
        run_simulation(
            server,
            flower_client.app,
            args.nodes,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {
                    "address": "local",  # not whatever cluster ran here last
                    "num_cpus": args.actors,
                    "_temp_dir": ray_folder,
                },
            },
        )


if __name__ == "__main__":
    main()
