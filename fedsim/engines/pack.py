"""Several contents in one message: where every message costs the start of a process.

A record that several of them share, like the global arrays, travels once.
"""

from collections.abc import Sequence

from flwr.app import ConfigRecord, RecordDict

from fedsim.errors import EngineError

_TABLE, _KEYS, _PLACES, _SIZES = "pack", "keys", "places", "sizes"


def pack(contents: Sequence[RecordDict]) -> RecordDict:
    """Put several contents into one.

    Examples:
        >>> shared = ConfigRecord({"n": 1})
        >>> packed = pack([RecordDict({"a": shared}), RecordDict({"a": shared})])
        >>> sorted(packed), [dict(content["a"]) for content in unpack(packed)]
        (['0', 'pack'], [{'n': 1}, {'n': 1}])
    """
    packed, place_of = RecordDict(), dict[int, int]()
    keys: list[str] = []
    places: list[int] = []
    for content in contents:
        for key, record in content.items():
            place = place_of.setdefault(id(record), len(place_of))
            packed[str(place)] = record
            keys.append(key)
            places.append(place)
    sizes = [len(content) for content in contents]
    packed[_TABLE] = ConfigRecord({_KEYS: keys, _PLACES: places, _SIZES: sizes})
    return packed


def unpack(packed: RecordDict) -> list[RecordDict]:
    """Return the contents; a record that was shared still is.

    Raises:
        EngineError: They are not what ``pack`` makes.
    """
    contents = []
    try:
        table = packed.config_records[_TABLE]
        keys, places, sizes = (table[name] for name in (_KEYS, _PLACES, _SIZES))
        if not (isinstance(keys, list) and isinstance(places, list) and isinstance(sizes, list)):
            raise TypeError("lists were expected")
        named = iter(zip(keys, places, strict=True))
        for size in sizes:
            entries = [next(named) for _ in range(int(size))]
            contents.append(RecordDict({str(key): packed[str(place)] for key, place in entries}))
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise EngineError(
            f"a message of several users: expected its table of records, found "
            f"{type(error).__name__}: {error}; use the same release of fedsim on every machine"
        ) from error
    return contents
