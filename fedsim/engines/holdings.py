"""What a node of a deployment tells about its data, checked: it comes over a network."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Message, RecordDict

from fedsim import __version__
from fedsim.data.dataset import UserTable
from fedsim.errors import DataError, EngineError

QUESTION = "question"
"""Key of the record with which a node is asked about its data."""

USERS, NUM_IMAGES, LABELS, LABEL_COUNTS = "users", "num-images", "labels", "label-counts"
VERSION = "fedsim"
REASON = "reason"
"""Keys of what it tells; the last one alone if it can't."""


@dataclass(frozen=True)
class Holding:
    """What a node tells about its data.

    Attributes:
        users: Those of its train split.
        label_names: In order.
        label_counts: How many of their images have each label, shape (labels,).
        version: Of its fedsim.
    """

    users: UserTable
    label_names: tuple[str, ...]
    label_counts: npt.NDArray[np.int64]
    version: str


def checked_holding(node: int, reply: Message, label_names: tuple[str, ...]) -> Holding:
    """Return what a node told.

    Args:
        node: Which one.
        reply: Of its client.
        label_names: Those that it has to have.

    Raises:
        FedsimError: Its client failed, it can't read its data, or labels or fedsim differ.
    """
    if reply.has_error():
        raise EngineError(
            f"SuperNode {node}: expected to be told which users it holds, found that its client "
            f"failed: {reply.error.reason}; see its log"
        )
    holding = _holding_of(node, reply.content)
    _check_alike(node, holding, label_names)
    return holding


def _holding_of(node: int, content: RecordDict) -> Holding:
    answer: Mapping[str, object] = next(iter(content.config_records.values()), {})
    if REASON in answer:
        raise DataError(f"SuperNode {node}: {answer[REASON]}")
    told: list[Any] = [answer.get(key) for key in (USERS, NUM_IMAGES, LABELS, LABEL_COUNTS)]
    ids, sizes, labels, counts = told
    if not (
        _is_list_of(str, ids)
        and _is_list_of(int, sizes)
        and _is_list_of(str, labels)
        and _is_list_of(int, counts)
        and (len(ids), len(labels)) == (len(sizes), len(counts))
        and sorted(set(ids)) == ids
        and min(sizes, default=1) >= 1
        and min(counts, default=0) >= 0
    ):
        raise EngineError(
            f"SuperNode {node}: expected sorted ids of its users, their numbers of images and "
            f"labels, found {str(dict(answer))[:80]}; use the same release of fedsim everywhere"
        )
    return Holding(
        UserTable(tuple(ids), np.array(sizes, dtype=np.int64)),
        tuple(labels),
        np.array(counts, dtype=np.int64),
        str(answer.get(VERSION)),
    )


def _is_list_of(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def all_users(holdings: Mapping[int, Holding]) -> UserTable:
    """Return the users of all nodes together.

    Raises:
        DataError: Two nodes hold the same user, whose influence would not be bounded.
    """
    owner: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for node, holding in holdings.items():
        for user, size in zip(holding.users.ids, holding.users.num_images.tolist(), strict=True):
            if user in owner:
                raise DataError(
                    f"SuperNodes {owner[user]} and {node}: expected users that are on one node "
                    f"each, found {user!r} on both; give the file of one of them without this user"
                )
            owner[user], sizes[user] = node, size
    ids = tuple(sorted(owner))
    return UserTable(ids, np.array([sizes[user] for user in ids], dtype=np.int64))


def _check_alike(node: int, holding: Holding, label_names: tuple[str, ...]) -> None:
    """Raise DataError for a node whose labels, or EngineError for one whose fedsim, differ."""
    if holding.version != __version__:
        raise EngineError(
            f"SuperNode {node}: expected fedsim {__version__} as on the server, found "
            f"{holding.version}; install the same release on every machine"
        )
    if holding.label_names != label_names:
        different = sorted(set(holding.label_names).symmetric_difference(label_names))[:3]
        raise DataError(
            f"SuperNode {node}: expected the server's {len(label_names)} labels, found "
            f"{len(holding.label_names)} (different: {different}); make the files of all "
            "machines from one collection, as `fedsim data split` does"
        )
