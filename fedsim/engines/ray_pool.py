"""Ray actors that answer units: handed out to the least loaded, done again when an actor dies."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Message

from fedsim.engines.client_app import MakeClientApp
from fedsim.engines.ray_actor import RayActor, place_of_driver
from fedsim.engines.ray_room import SECONDS_TO_FIND_ROOM, Share
from fedsim.engines.stripped import StrippedUnit, first_arrays
from fedsim.engines.unit import Unit, place_of
from fedsim.errors import EngineError, FedsimError, first_line

_MAX_RESTARTS = 3
_UNITS_PER_ACTOR = 2  # one at work, and one at hand when it is done
_WINDOW_PER_ACTOR = 4  # units that are out, or whose replies wait for their turn


@dataclass(eq=False)
class _Actor:
    """An actor as seen from here.

    Attributes:
        handle: Ray's.
        started: Reference to what its start returns; that may wait long for its resources.
        is_up: Whether it has started.
        load: Units that it was handed and has not answered.
    """

    handle: Any
    started: Any
    is_up: bool = False
    load: int = 0


@dataclass(eq=False)
class _Open:
    """A unit whose reply was not handed on yet.

    Attributes:
        stripped: What to do.
        actor: Who is at it, or was; None if nobody is.
        fault, reply: References to the two parts of the answer.
        is_done: Whether the answer is there.
        num_deaths: Actors that died over it.
    """

    stripped: StrippedUnit
    actor: _Actor | None = None
    fault: Any = None
    reply: Any = None
    is_done: bool = False
    num_deaths: int = 0


class ActorPool:
    """Runs units in actors; yields their replies in order.

    Args:
        ray: The package, connected.
        make_client_app: Builds the ClientApp in an actor.
        share: What an actor takes.
        num_actors: How many; those that find no room wait for it, and the others do the work.
    """

    def __init__(
        self, ray: Any, make_client_app: MakeClientApp, share: Share, num_actors: int
    ) -> None:
        self._ray, self._share, self._make_client_app = ray, share, make_client_app
        errors = ray.exceptions
        self._death = (errors.RayActorError, errors.ObjectLostError, errors.OutOfMemoryError)
        self._class = ray.remote(RayActor).options(**share.options())
        self._actors = [self._start() for _ in range(num_actors)]
        self._open: deque[_Open] = deque()
        self._record: ArrayRecord | None = None
        self._published: list[Any] = []
        self._failed_starts = 0
        self.num_replaced = 0

    def run(self, units: Iterable[Unit]) -> Iterator[Message]:
        """Yield one reply per unit."""
        self._open.clear()  # a reader may have stopped early: nobody asks for the others
        self._record, self._published = None, []
        for actor in self._actors:
            actor.load = 0
        coming = iter(units)
        while True:
            self._open_more(coming)
            self._hand_out()
            if not self._open:
                return
            if not self._open[0].is_done:
                self._wait()
                continue
            reply = self._fetch(self._open[0])
            if reply is not None:
                self._open.popleft()
                yield reply

    def close(self) -> None:
        """End the actors, whatever they are doing."""
        self._open.clear()
        for actor in self._actors:
            self._ray.kill(actor.handle)

    def _start(self) -> _Actor:
        handle = self._class.remote(*place_of_driver())
        return _Actor(handle, handle.start.remote(self._make_client_app))

    def _open_more(self, coming: Iterator[Unit]) -> None:
        """Take units, and put the arrays that all of them carry into Ray's store, once."""
        while len(self._open) < _WINDOW_PER_ACTOR * len(self._actors):
            unit = next(coming, None)
            if unit is None:
                return
            if not self._published:
                self._record = first_arrays(unit)
                self._published = [self._ray.put(self._record)]
            self._open.append(_Open(StrippedUnit.of(unit, self._record)))

    def _hand_out(self) -> None:
        """Give the units that nobody is at to the actors that have least to do."""
        for entry in self._open:
            if entry.actor is not None:
                continue
            able = [a for a in self._actors if a.is_up and a.load < _UNITS_PER_ACTOR]
            if not able:
                return
            entry.actor = min(able, key=lambda actor: actor.load)
            entry.actor.load += 1
            answer = entry.actor.handle.answer.options(num_returns=2)
            entry.fault, entry.reply = answer.remote(entry.stripped, self._published)

    def _wait(self) -> None:
        """Wait until an actor has started, has answered or has died."""
        answers = {e.fault: e for e in self._open if e.actor is not None and not e.is_done}
        starts = {a.started: a for a in self._actors if not a.is_up}
        ready, _ = self._ray.wait([*answers, *starts], timeout=SECONDS_TO_FIND_ROOM)
        if not ready and not answers:
            self._share.check_fits(self._ray)  # if it does, others' work will end some day
        for ref in ready:
            if ref in answers:
                self._note_answer(answers[ref])
            else:
                self._note_start(starts[ref])

    def _note_answer(self, entry: _Open) -> None:
        actor = entry.actor
        if actor is None:
            return
        try:
            fault: FedsimError | None = self._ray.get(entry.fault)
        except self._death as error:
            self._replace(actor, error)
            return
        entry.fault, entry.is_done = fault, True
        actor.load -= 1

    def _note_start(self, actor: _Actor) -> None:
        try:
            fault: FedsimError | None = self._ray.get(actor.started)
        except self._death as error:
            self._failed_starts += 1
            if self._failed_starts > _MAX_RESTARTS:
                raise _killed(self._failed_starts, f"their start ({first_line(error)})") from error
            self._replace(actor, error)
            return
        if fault is not None:
            raise fault
        actor.is_up, self._failed_starts = True, 0

    def _fetch(self, entry: _Open) -> Message | None:
        """Return the reply to a unit; None if it was lost with its node, and is done again."""
        if entry.fault is not None:  # only here, so that it is the first of the round that is told
            raise entry.fault
        try:
            reply: Message = self._ray.get(entry.reply)
        except self._death as error:
            _give_up(entry, error)
            return None
        return reply

    def _replace(self, dead: _Actor, error: Exception) -> None:
        """Start another actor in a dead one's place, and take back what that was handed."""
        self.num_replaced += 1
        self._ray.kill(dead.handle)  # it may only have been cut off
        self._actors[self._actors.index(dead)] = self._start()
        lost = [entry for entry in self._open if entry.actor is dead and not entry.is_done]
        for entry in lost:
            entry.actor = None
        if lost:  # an actor works in order: the others were only waiting
            _give_up(lost[0], error)


def _give_up(entry: _Open, error: Exception) -> None:
    entry.actor, entry.is_done = None, False
    entry.num_deaths += 1
    if entry.num_deaths > _MAX_RESTARTS:
        first = place_of(entry.stripped.unit.messages[0])
        raise _killed(entry.num_deaths, f"the block that begins with {first}") from error


def _killed(times: int, over: str) -> EngineError:
    return EngineError(
        f"engine.workers: Ray actors were killed {times} times over {over}; look for out-of-memory "
        "messages in Ray's logs, and let fewer workers share a machine"
    )
