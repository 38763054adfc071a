"""A unit on its way to a worker, without the arrays that every worker has already."""

import copy
from dataclasses import dataclass

from flwr.app import ArrayRecord, RecordDict

from fedsim.engines.unit import Unit


@dataclass(frozen=True)
class StrippedUnit:
    """A unit whose messages lack the record that was published to all workers.

    Attributes:
        unit: Messages from which the published record was taken out.
        keys: For each message the keys of its records, in order; those that it lacks are the
            published record's.
    """

    unit: Unit
    keys: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, unit: Unit, published: ArrayRecord | None) -> "StrippedUnit":
        """Take the published record out of a unit's messages, which stay as they are."""
        messages, keys = [], []
        for message in unit.messages:
            records = dict(message.content.items())
            stripped = copy.copy(message)
            stripped.content = RecordDict(
                {key: value for key, value in records.items() if value is not published}
            )
            messages.append(stripped)
            keys.append(tuple(records))
        return cls(Unit(tuple(messages), unit.rule), tuple(keys))

    def restored(self, published: ArrayRecord) -> Unit:
        """Put the published record back, and return the unit."""
        for message, keys in zip(self.unit.messages, self.keys, strict=True):
            content = dict(message.content.items())
            message.content = RecordDict({key: content.get(key, published) for key in keys})
        return self.unit


def first_arrays(unit: Unit) -> ArrayRecord | None:
    """Return the record that a unit's first message carries first: in most rounds everybody's."""
    return next(iter(unit.messages[0].content.array_records.values()), None)
