"""The statistics against slow loops over records."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsim.data.statistics as fast
from fedsim.data.index import LABEL_SETS, SPLITS, ImageIndex, ImageRecord, row_order

Records = list[ImageRecord]


@st.composite
def collections(draw: st.DrawFn) -> Records:
    """Up to thirty images; users of all sizes, images without labels, splits without users."""
    num_users = draw(st.integers(1, 8))
    splits = draw(st.lists(st.sampled_from(SPLITS), min_size=num_users, max_size=num_users))
    names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=4)
    owners = draw(st.lists(st.integers(0, num_users - 1), min_size=1, max_size=30))
    return [
        ImageRecord(
            f"u{owner}", f"i{place}", splits[owner], (tuple(draw(names)), tuple(draw(names)))
        )
        for place, owner in enumerate(owners)
    ]


def ordered(records: Records, split: str | None = None) -> Records:
    rows = [records[place] for place in row_order(records)]
    return [record for record in rows if split in (None, record.split)]


def by_user(records: Records) -> list[Records]:
    users: dict[str, Records] = {}
    for record in records:
        users.setdefault(record.user_id, []).append(record)
    return list(users.values())


@given(collections())
def test_counts_equal_those_of_a_loop(records: Records) -> None:
    index = ImageIndex.of(records)
    for split in (*SPLITS, None):
        rows = ordered(records, split)
        assert fast.images_per_user(index, split).tolist() == [len(own) for own in by_user(rows)]
        for position, label_set in enumerate(LABEL_SETS):
            per_image = [len(record.labels[position]) for record in rows]
            assert fast.labels_per_image(index, label_set, split).tolist() == per_image
            per_user = [
                len({label for record in own for label in record.labels[position]})
                for own in by_user(rows)
            ]
            assert fast.labels_per_user(index, label_set, split).tolist() == per_user


@given(collections())
def test_images_per_label_equal_those_of_a_loop(records: Records) -> None:
    index = ImageIndex.of(records)
    for position, label_set in enumerate(LABEL_SETS):
        found = fast.images_per_label(index, label_set)
        assert found.shape == (3, len(index.labels[label_set].names))
        for split, counts in zip(SPLITS, found.tolist(), strict=True):
            expected = Counter(
                label for record in ordered(records, split) for label in record.labels[position]
            )
            assert counts == [expected[name] for name in index.labels[label_set].names]


@given(collections(), st.randoms(use_true_random=False), st.integers(1, 9))
def test_co_occurrence_equals_that_of_a_loop(records: Records, random: Random, size: int) -> None:
    labels = ImageIndex.of(records).labels["fine"]
    chosen = random.sample(range(len(labels.names)), random.randint(0, len(labels.names)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "_ROWS_AT_A_TIME", size)
        found = fast.co_occurrence(labels, np.array(chosen, dtype=np.int64))
    names = [labels.names[number] for number in chosen]
    expected = [
        [sum(a in record.labels[1] and b in record.labels[1] for record in records) for b in names]
        for a in names
    ]
    assert found.tolist() == expected


@given(st.lists(st.integers(0, 5000), min_size=2))
def test_spread_equals_the_standard_library(counts: list[int]) -> None:
    found = fast.spread_of(np.array(counts))
    assert found is not None
    quartiles = statistics.quantiles(counts, n=4, method="inclusive")
    assert found.quartiles == pytest.approx(quartiles)
    assert found.high == pytest.approx(statistics.quantiles(counts, n=100, method="inclusive")[98])
    assert found.mean == pytest.approx(statistics.fmean(counts))
    assert (found.minimum, found.maximum) == (min(counts), max(counts))


def test_nothing_has_no_spread() -> None:
    assert fast.spread_of(np.array([], dtype=np.int64)) is None


def entropy(shares: Iterable[float]) -> float:
    return -sum(share * math.log2(share) for share in shares if share > 0)


def divergences(users: list[list[tuple[str, ...]]]) -> list[float]:
    """Return H((p + q) / 2) - (H(p) + H(q)) / 2 of every user's labels p and the pooled q."""
    pooled = Counter(label for own in users for labels in own for label in labels)
    q = {name: count / pooled.total() for name, count in pooled.items()}
    found = []
    for own in users:
        counts = Counter(label for labels in own for label in labels)
        p = {name: counts[name] / counts.total() if counts else math.nan for name in pooled}
        middle = entropy((p[name] + q[name]) / 2 for name in pooled)
        value = middle - (entropy(p.values()) + entropy(q.values())) / 2
        found.append(value if counts else math.nan)
    return found


@given(collections(), st.integers(0, 3))
def test_divergence_equals_that_of_entropies(records: Records, seed: int) -> None:
    index = ImageIndex.of(records)
    for split in SPLITS:
        rows = [record.labels[1] for record in ordered(records, split)]
        sizes = [len(own) for own in by_user(ordered(records, split))]
        found = fast.divergence_of(index, "fine", split, np.random.default_rng(seed))
        assert found.sizes.tolist() == sizes
        order = np.random.default_rng(seed).permutation(len(rows)).tolist()
        dealt = {"users": rows, "control": [rows[place] for place in order]}
        for name, images in dealt.items():
            images = list(images)
            users = [[images.pop(0) for _ in range(size)] for size in sizes]
            values = getattr(found, name)
            np.testing.assert_allclose(values, divergences(users), atol=1e-12)


def one_user_each(*labels: tuple[str, ...]) -> ImageIndex:
    return ImageIndex.of(
        [ImageRecord(f"u{k}", f"i{k}", "train", ((), own)) for k, own in enumerate(labels)]
    )


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (one_user_each(("a", "b"), ("a", "b")), [0.0, 0.0]),
        # p = (1, 0), q = (1/2, 1/2): H(3/4, 1/4) - 1/2
        (one_user_each(("a",), ("b",)), [2 - 0.75 * math.log2(3) - 0.5] * 2),
        (one_user_each((), ("b",)), [math.nan, 0.0]),
    ],
)
def test_divergences_that_are_known(index: ImageIndex, expected: list[float]) -> None:
    found = fast.divergence_of(index, "fine", "train", np.random.default_rng(0))
    np.testing.assert_allclose(found.users, expected, atol=1e-12)


def test_a_users_own_style_is_far_from_the_control() -> None:
    """Users who each keep to one label diverge more than the same images dealt at random."""
    records = [
        ImageRecord(f"u{user}", f"i{user}-{image}", "train", ((), ("abcdef"[user % 6],)))
        for user in range(12)
        for image in range(10)
    ]
    found = fast.divergence_of(ImageIndex.of(records), "fine", "train", np.random.default_rng(1))
    assert found.users.min() > 0.6 > 0.4 > found.control.max()
