"""Ways to deal the images of the train split to users, beside the one that the data have.

Each is a function of the index and a seed. The images are sorted by id before any draw, so the
order in which a source lists them changes nothing; a user's images are in the order dealt.
"""

from itertools import pairwise

import numpy as np

from fedsim.data.index import ImageIndex, Int64s, LabelRows, offsets_of
from fedsim.data.partition import Deal
from fedsim.streams import numpy_stream

PURPOSE = "partition"


def iid(index: ImageIndex, *, seed: int) -> Deal:
    """Deal at random to users of the same ids and sizes: the IID twin of the data.

    Args:
        index: The collection's.
        seed: Of the shuffle.
    """
    user_ids, sizes, rows = _train(index)
    return Deal(user_ids, sizes, numpy_stream(seed, PURPOSE, "iid").permutation(rows))


def iid_constant(index: ImageIndex, *, images_per_user: int, seed: int) -> Deal:
    """Deal at random to new users of a constant number of images.

    They are called ``iid-0``, ``iid-1``, ..., with leading zeros. The last one holds the images
    that are left over, if any: fewer than the others do.

    Args:
        index: The collection's.
        images_per_user: At least 1.
        seed: Of the shuffle.
    """
    _, _, rows = _train(index)
    sizes = np.full(-(-len(rows) // images_per_user), images_per_user, dtype=np.int64)
    sizes[-1:] -= sizes.sum() - len(rows)
    digits = len(str(len(sizes) - 1))
    user_ids = tuple(f"iid-{number:0{digits}d}" for number in range(len(sizes)))
    return Deal(user_ids, sizes, numpy_stream(seed, PURPOSE, "iid_constant").permutation(rows))


def quantity(index: ImageIndex, *, skew: float, seed: int) -> Deal:
    """Deal at random to the users of the data, whose sizes are drawn anew: quantity skew.

    Every user has one image; the others are shared out in proportion to weights exp(skew * z),
    z ~ N(0, 1), rounded. Sizes have nothing to do with those in the data.

    Args:
        index: The collection's.
        skew: Standard deviation of the log-normal weights' logarithm, at least 0. At 0 sizes differ
            by 1 at most; with many images a user, their Gini coefficient is erf(skew / 2).
        seed: Of weights and shuffle.
    """
    user_ids, _, rows = _train(index)
    stream = numpy_stream(seed, PURPOSE, "quantity")
    logs = skew * stream.standard_normal(len(user_ids))
    sums = np.cumsum(np.exp(logs - logs.max(initial=0)))
    # Rounding the running sums, and not each share, keeps the total.
    bounds = np.rint((len(rows) - len(user_ids)) * (sums / sums[-1:])).astype(np.int64)
    return Deal(user_ids, 1 + np.diff(bounds, prepend=0), stream.permutation(rows))


def dirichlet(index: ImageIndex, *, alpha: float, labels: str, seed: int) -> Deal:
    """Deal to users of the same ids and sizes who prefer some labels to others: label skew.

    Each image stands for one of its labels, drawn uniformly; "no label" is one more. In random
    order, each user takes images whose labels are draws from p ~ Dir(alpha * q), where q is the
    composition of what is not yet dealt; a label that is used up leaves p, which is normalized
    anew. p is never made: its predictive distribution (Blackwell and MacQueen 1973, doi
    10.1214/aos/1176342372) is an urn, so the cost does not depend on the number of labels. With
    n images in hand, the next is any of the rest with probability alpha / (alpha + n), else one of
    the label of an image in hand. The prior is that of Hsu et al. 2019 (arXiv 1909.06335), but q
    follows what is left, so that the last users are not given what others did not want.

    As alpha grows the deal tends to ``iid``; as it falls, to users of one label each, as far as
    their sizes allow.

    Args:
        index: The collection's.
        alpha: Concentration, greater than 0.
        labels: Which label set: "coarse" or "fine".
        seed: Of all draws.
    """
    user_ids, sizes, rows = _train(index)
    stream = numpy_stream(seed, PURPOSE, "dirichlet")
    deck = _Deck(_one_label_each(index.labels[labels], rows, stream), stream)
    offsets = offsets_of(sizes)
    dealt = np.empty_like(rows)
    for user in stream.permutation(len(user_ids)).tolist():
        start, stop = offsets[user : user + 2].tolist()
        dealt[start:stop] = deck.hand(stop - start, alpha, stream)
    return Deal(user_ids, sizes, rows[dealt])


class _Deck:
    """Images that are not yet dealt.

    Args:
        labels: The label that each image stands for.
        stream: Shuffles the images.
    """

    def __init__(self, labels: list[int], stream: np.random.Generator) -> None:
        self._labels = labels
        self._rest = list(range(len(labels)))
        self._place = list(range(len(labels)))  # in the rest; -1 once dealt
        self._piles: dict[int, list[int]] = {}  # by label, shuffled; dealt ones stay until met
        for image in stream.permutation(len(labels)).tolist():
            self._piles.setdefault(labels[image], []).append(image)
        self._left = {label: len(pile) for label, pile in self._piles.items()}

    def hand(self, size: int, alpha: float, stream: np.random.Generator) -> list[int]:
        """Deal ``size`` images to one user."""
        images: list[int] = []
        held: list[int] = []  # labels in hand, one entry an image, that can still be had
        for draw, which in stream.random((size, 2)).tolist():
            place = draw * (alpha + len(held))
            if place < len(held):
                image = self._of_label(held[int(place)])
            else:
                image = self._rest[int(which * len(self._rest))]
            self._remove(image)
            images.append(image)
            label = self._labels[image]
            held.append(label)
            if not self._left[label]:
                held = [other for other in held if other != label]
        return images

    def _of_label(self, label: int) -> int:
        pile = self._piles[label]
        while self._place[pile[-1]] < 0:
            pile.pop()
        return pile[-1]

    def _remove(self, image: int) -> None:
        place, last = self._place[image], self._rest.pop()
        if last != image:
            self._rest[place], self._place[last] = last, place
        self._place[image] = -1
        self._left[self._labels[image]] -= 1


def _one_label_each(labels: LabelRows, rows: Int64s, stream: np.random.Generator) -> list[int]:
    """Draw one of each image's labels; an image without any gets the number after the last."""
    counts = np.diff(labels.indptr)[rows]
    places = labels.indptr[rows] + (stream.random(len(rows)) * counts).astype(np.int64)
    drawn = np.full(len(rows), len(labels.names), dtype=np.int64)
    drawn[counts > 0] = labels.indices[places[counts > 0]]
    return drawn.tolist()


def _train(index: ImageIndex) -> tuple[tuple[str, ...], Int64s, Int64s]:
    """Return ids and sizes of the train users, and the rows of their images sorted by image id."""
    _, stop = index.users_of("train")
    offsets = index.user_offsets[: stop + 1]
    table = index.image_ids
    bounds = table.offsets[: offsets[-1] + 1].tolist()
    image_ids = [table.blob[a:b] for a, b in pairwise(bounds)]  # UTF-8 sorts as code points do
    rows = np.array(sorted(range(len(image_ids)), key=image_ids.__getitem__), dtype=np.int64)
    return index.user_ids.cut(0, stop), np.diff(offsets), rows
