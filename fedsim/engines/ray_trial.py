"""One user is trained in an actor before the first round, to see how much memory that takes."""

from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedsim.arrays import Arrays
from fedsim.engines.client_app import MakeClientApp
from fedsim.engines.ray_actor import RayActor, place_of_driver
from fedsim.engines.ray_room import SECONDS_TO_FIND_ROOM, Share
from fedsim.engines.stripped import StrippedUnit
from fedsim.engines.unit import Unit
from fedsim.errors import EngineError, first_line
from fedsim.flower_seam import to_record
from fedsim.update_sum import ARRAYS, CONFIG, ROUND, USER

_MARGIN = 1.1


@dataclass(frozen=True)
class Trial:
    """Whom to measure an actor's memory on.

    Attributes:
        make_client_app: As for the run, but such that nothing of the trial is kept.
        user: The user's id: one of the largest.
        arrays: What is sent to them.
        bytes_beside: What an actor comes to hold beside that: decoded images.
    """

    make_client_app: MakeClientApp
    user: str
    arrays: Arrays
    bytes_beside: int = 0

    def memory(self, ray: Any, share: Share) -> int:
        """Return the bytes that an actor needs; Ray has to be connected.

        Raises:
            EngineError: The actor finds no room, or dies.
            FedsimError: The user can't be trained.
        """
        handle = ray.remote(RayActor).options(**share.options()).remote(*place_of_driver())
        try:
            started = handle.start.remote(self.make_client_app)
            while not ray.wait([started], timeout=SECONDS_TO_FIND_ROOM)[0]:
                share.check_fits(ray)
            fault = ray.get(started)
            if fault is None:
                stripped = StrippedUnit.of(Unit((self._message(),), rule=None), None)
                answer = handle.answer.options(num_returns=2).remote(stripped, [])
                fault = ray.get(answer[0])
            if fault is not None:
                raise fault
            return int(_MARGIN * ray.get(handle.peak_memory.remote())) + self.bytes_beside
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            raise EngineError(
                f"engine.workers: expected one actor to train user {self.user!r}, to see how much "
                f"memory that takes, found that it died ({first_line(error)}); set engine.workers, "
                "with which nobody is measured"
            ) from error
        finally:
            ray.kill(handle)

    def _message(self) -> Message:
        config = ConfigRecord({USER: self.user, ROUND: 0})
        content = RecordDict({ARRAYS: to_record(self.arrays), CONFIG: config})
        return Message(content, dst_node_id=1, message_type=MessageType.TRAIN)
