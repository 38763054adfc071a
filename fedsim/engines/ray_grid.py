"""The Ray engine: users are trained and scored by actors, on this machine or on a cluster.

A round's arrays are put into Ray's store once, and each node fetches them once. An actor that is
free is handed the next unit; it folds a block's updates, and one array set per block comes back. An
actor that dies, alone or with its node, is replaced, and what it was at is done again.
"""

import dataclasses

from fedsim.engines.client_app import MakeClientApp
from fedsim.engines.ray_connection import connect, import_ray
from fedsim.engines.ray_pool import ActorPool
from fedsim.engines.ray_room import Share
from fedsim.engines.ray_trial import Trial
from fedsim.engines.user_grid import UserGrid
from fedsim.flower_seam import ensure_task_identity

ONE_CPU = Share()


class RayGrid(UserGrid):
    """A Grid on Ray.

    Args:
        make_client_app: Builds the ClientApp in an actor; picklable.
        num_users: Users of the train split; each is a node, numbered from 1.
        address: Of a running cluster; None starts a Ray on this machine, which ends with the Grid.
        share: What an actor takes.
        num_actors: How many; None for as many as find room now.
        trial: Whom to measure an actor's memory on, if that decides how many find room.
    """

    def __init__(
        self,
        make_client_app: MakeClientApp,
        *,
        num_users: int,
        address: str | None = None,
        share: Share = ONE_CPU,
        num_actors: int | None = None,
        trial: Trial | None = None,
    ) -> None:
        ensure_task_identity()
        self._disconnect = connect(address)
        try:
            ray = import_ray()
            if num_actors is None:
                free = ray.available_resources()  # before the trial, whose room is free only later
                if trial is not None:
                    share = dataclasses.replace(share, memory=trial.memory(ray, share))
                num_actors = max(1, share.num_in(free))
            super().__init__(ActorPool(ray, make_client_app, share, num_actors), num_users)
        except BaseException:
            self._disconnect()
            raise

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        try:
            super().close()
        finally:
            self._disconnect()
