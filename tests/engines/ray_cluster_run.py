"""Trains on a cluster of three nodes on this machine, one of which is lost in the middle.

Run as a program of its own, since a process is connected to one Ray only. The head has no cores, so
that both actors are on nodes that may be lost.
"""

import functools
import os
import sys
import threading
import time
from pathlib import Path

import fakes
from flwr.clientapp import ClientApp
from test_ray_grid import USERS, averaging, equal, train, user_of

from fedsim.arrays import Arrays
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.engines.ray_grid import RayGrid


def app_that_waits(user: str, folder: Path) -> ClientApp:
    def wait(arrays: Arrays) -> None:
        (folder / "waiting").touch()
        deadline = time.monotonic() + 60
        while not (folder / "lost").exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    (folder / f"up-{os.getpid()}").touch()
    return client_app(fakes._Saboteur(user, wait))


def main() -> None:
    # Not above: pytest reads this file for doctests, and nothing there may import ray.
    from ray.cluster_utils import Cluster

    folder = Path(sys.argv[1])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=1)
    doomed = cluster.add_node(num_cpus=1)

    def lose_a_node() -> None:
        # An actor that has not started yet would be moved by Ray itself.
        while not (folder / "waiting").exists() or len(list(folder.glob("up-*"))) < 2:
            time.sleep(0.05)
        cluster.remove_node(doomed, allow_graceful=False)
        (folder / "lost").touch()

    threading.Thread(target=lose_a_node).start()
    make_app = functools.partial(app_that_waits, user_of(2, 0), folder)
    try:
        with RayGrid(make_app, num_users=len(USERS), address=cluster.address, num_actors=2) as grid:
            there, replaced = train(averaging(), grid), grid.num_workers_replaced
    finally:
        cluster.shutdown()
    with InProcessGrid(fakes.tiny_app, fakes.tiny_arrays(), num_users=len(USERS)) as grid:
        here = train(averaging(), grid)
    print("equal" if equal(here, there) else "different", replaced, (folder / "lost").exists())


if __name__ == "__main__":
    main()
