"""Partitions on made-up collections, against closed forms, NumPy's Dirichlet and plain text."""

import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsim import build
from fedsim.build_privacy import federated_privacy
from fedsim.cli import app
from fedsim.config import RunConfig
from fedsim.config_file import load_runs
from fedsim.data.dataset import UserTable
from fedsim.data.dealing import dirichlet, iid, iid_constant, quantity
from fedsim.data.index import About, ImageIndex, ImageRecord
from fedsim.data.partition import Deal, repartition
from fedsim.data.partition_file import read_partition, write_partition
from fedsim.data.sources import open_dataset
from fedsim.errors import ConfigError, DataError
from fedsim.plan import plan_runs

Owners = dict[str, tuple[str, ...]]

METHODS: dict[str, Callable[..., Deal]] = {
    "iid": iid,
    "iid_constant": partial(iid_constant, images_per_user=7),
    "dirichlet": partial(dirichlet, alpha=0.3, labels="fine"),
    "dirichlet_extreme": partial(dirichlet, alpha=1e-12, labels="coarse"),
    "quantity": partial(quantity, skew=1.5),
}


class Memory:
    """A collection whose stored image is its id."""

    place, about, content_sha256 = "memory", About("memory"), "0" * 64

    def __init__(self, records: Iterable[ImageRecord]) -> None:
        self.index = ImageIndex.of(list(records))

    def read(self, rows: Iterable[int]) -> Iterator[bytes]:
        for row in rows:
            yield self.index.image_ids[row].encode()


def made_up(seed: int = 0, num_users: int = 40) -> list[ImageRecord]:
    """Users of 1 to 30 images of 0 to 3 labels, some awkward ids, in all splits, in any order."""
    rng = np.random.default_rng(seed)
    records = []
    for user in range(num_users):
        user_id = ["ü, ser", 'z"0', "0123", "12@N00"][user] if user < 4 else f"u{user}"
        for number in range(1 if user % 5 == 0 else int(rng.integers(2, 31))):
            labels = tuple(f"l{k}" for k in rng.permutation(6)[: rng.integers(0, 4)])
            image_id = f"{user}/é,{number}" if user < 4 else f"{user:03d}-{number}"
            split = "val" if user % 10 == 8 else "test" if user % 10 == 9 else "train"
            records.append(ImageRecord(user_id, image_id, split, (labels, labels[:1])))
    return [records[k] for k in rng.permutation(len(records))]


def of_one_label(sizes: Iterable[int], frequencies: list[float], seed: int = 0) -> ImageIndex:
    """Return train users of these sizes whose images have one label each, or none for label 0."""
    users = np.repeat(np.arange(len(list(sizes))), list(sizes))
    drawn = np.random.default_rng(seed).choice(len(frequencies), len(users), p=frequencies)
    return ImageIndex.of(
        [
            ImageRecord(f"{user:06d}", f"{image:06d}", "train", ((str(label),) * (label > 0),) * 2)
            for image, (user, label) in enumerate(zip(users, drawn.tolist(), strict=True))
        ]
    )


def owners(index: ImageIndex, split: str = "train") -> Owners:
    return {
        index.user_ids[user]: index.image_ids.cut(*index.user_offsets[user : user + 2].tolist())
        for user in range(*index.users_of(split))
    }


def sizes_of(index: ImageIndex) -> dict[str, int]:
    return {user: len(images) for user, images in owners(index).items()}


def histograms(index: ImageIndex, deal: Deal) -> np.ndarray:
    """Return each user's number of images by coarse label, the last column for no label."""
    dense = index.labels["coarse"].dense(deal.rows).astype(np.int64)
    dense = np.column_stack([dense, dense.sum(axis=1) == 0])
    user = np.repeat(np.arange(len(deal.sizes)), deal.sizes)
    counts = np.zeros((len(deal.sizes), dense.shape[1]), dtype=np.int64)
    np.add.at(counts, user, dense)
    return counts


def divergence(counts: np.ndarray) -> float:
    """Return the users' mean Jensen-Shannon divergence from the whole, in bits."""
    p = counts / counts.sum(axis=1, keepdims=True)
    q = np.broadcast_to(counts.sum(axis=0) / counts.sum(), p.shape)
    m = (p + q) / 2

    def entropy(x: np.ndarray) -> np.ndarray:
        return -np.sum(x * np.log2(x, out=np.zeros_like(x), where=x > 0), axis=1)

    return float(np.mean(entropy(m) - (entropy(p) + entropy(q)) / 2))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_train_image_is_dealt_once_and_the_rest_stays(method: str, seed: int) -> None:
    records = made_up(seed)
    source = Memory(records)
    dealt = repartition(source, partial(METHODS[method], seed=seed))
    before, after = owners(source.index), owners(dealt.index)
    assert Counter(i for images in after.values() for i in images) == Counter(
        record.image_id for record in records if record.split == "train"
    )
    assert after != before
    assert list(after) == sorted(after)
    for split in ("val", "test"):
        assert owners(dealt.index, split) == owners(source.index, split)
    if method != "iid_constant":
        assert after.keys() == before.keys()
    if method in ("iid", "dirichlet", "dirichlet_extreme"):
        assert sizes_of(dealt.index) == sizes_of(source.index)
    # What is stored of an image, and its labels, go with its id.
    labels = {record.image_id: record.labels for record in records}
    assert len(dealt.index) == len(records)
    for row, stored in enumerate(dealt.read(np.arange(len(records)))):
        image_id = dealt.index.image_ids[row]
        assert stored.decode() == image_id
        for position, rows in enumerate(dealt.index.labels.values()):
            found = rows.indices[rows.indptr[row] : rows.indptr[row + 1]]
            assert {rows.names[k] for k in found} == set(labels[image_id][position])


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_alone_matters_not_the_order_of_the_records(method: str) -> None:
    records = made_up()
    deal = partial(METHODS[method], seed=5)
    first = repartition(Memory(records), deal)
    other_order = repartition(Memory(reversed(records)), pickle.loads(pickle.dumps(deal)))
    assert owners(first.index) == owners(other_order.index)
    assert repartition(Memory(records), deal).index.sha256() == first.index.sha256()
    assert first.index.sha256() != Memory(records).index.sha256()
    assert owners(repartition(Memory(records), partial(METHODS[method], seed=6)).index) != owners(
        first.index
    )


@pytest.mark.parametrize("deal", [iid, partial(dirichlet, alpha=1e15, labels="coarse")])
def test_without_skew_each_image_goes_anywhere_by_size(deal: Callable[..., Deal]) -> None:
    index = of_one_label([1, 3, 6], [0.5, 0.4, 0.1])
    tries = 2000
    user_of = np.empty((tries, 10), dtype=np.int64)
    for seed in range(tries):
        dealt = deal(index, seed=seed)
        user_of[seed, dealt.rows] = np.repeat(np.arange(3), dealt.sizes)
    for user, size in enumerate([1, 3, 6]):
        spread = math.sqrt(tries * size / 10 * (1 - size / 10))
        found = (user_of == user).sum(axis=0)
        assert np.abs(found - tries * size / 10).max() < 4.5 * spread
    # Two images are together as often as without replacement: (3 * 2 + 6 * 5) / (10 * 9).
    together = (user_of[:, 0] == user_of[:, 1]).mean()
    assert together == pytest.approx(0.4, abs=4.5 * math.sqrt(0.24 / tries))


@pytest.mark.parametrize("alpha", [0.05, 0.5, 2.0, 20.0])
def test_two_images_of_a_user_share_a_label_as_often_as_dirichlet_says(alpha: float) -> None:
    """P = (1 + alpha * sum of q squared) / (1 + alpha), from the moments of Dir(alpha * q)."""
    num_users, frequencies = 4000, [0.4, 0.3, 0.2, 0.1]
    index = of_one_label([2] * num_users, frequencies)
    counts = histograms(index, dirichlet(index, alpha=alpha, labels="coarse", seed=1))
    expected = (1 + alpha * sum(q * q for q in frequencies)) / (1 + alpha)
    spread = math.sqrt(expected * (1 - expected) / num_users)
    assert (counts.max(axis=1) == 2).mean() == pytest.approx(expected, abs=4.5 * spread)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_users_look_like_those_of_numpys_dirichlet(alpha: float) -> None:
    frequencies = [0.3, 0.25, 0.2, 0.15, 0.07, 0.03]
    index = of_one_label([20] * 1000, frequencies)
    dealt = histograms(index, dirichlet(index, alpha=alpha, labels="coarse", seed=2))
    rng = np.random.default_rng(3)
    drawn = rng.multinomial(20, rng.dirichlet(alpha * np.array(frequencies), 20_000))
    for figure in (lambda c: c.max(axis=1), lambda c: (c > 0).sum(axis=1)):
        spread = figure(drawn).std() * math.sqrt(1 / 1000 + 1 / 20_000)
        # Without replacement the last users make up for the first, so a little more than chance.
        assert figure(dealt).mean() == pytest.approx(figure(drawn).mean(), abs=4.5 * spread)


def test_label_skew_falls_with_alpha_from_one_label_a_user_to_the_iid_twin() -> None:
    index = Memory(made_up(num_users=300)).index
    found = [
        divergence(histograms(index, dirichlet(index, alpha=alpha, labels="coarse", seed=0)))
        for alpha in (1e-9, 0.1, 1, 10, 1e9)
    ]
    assert found == sorted(found, reverse=True)
    twins = [divergence(histograms(index, iid(index, seed=seed))) for seed in range(5)]
    assert found[-1] == pytest.approx(np.mean(twins), abs=5 * np.std(twins))
    assert found[0] > 2 * np.mean(twins)


def test_at_tiny_alpha_a_user_has_one_label_as_far_as_they_last() -> None:
    index = of_one_label([*[5] * 400, 900], [0.4, 0.3, 0.2, 0.1])
    deal = dirichlet(index, alpha=1e-300, labels="coarse", seed=0)
    counts = histograms(index, deal)
    mixed = (counts > 0).sum(axis=1) > 1
    assert counts[:, -1].sum() > 1000  # images without a label are one more label
    # A user has two labels only where a label ran out: once for each label.
    assert mixed.sum() <= 4
    assert ((counts[:400] == 5).any(axis=1)).sum() >= 396


def test_a_label_that_runs_out_leaves_the_preferences_as_they_were() -> None:
    """Every order in which one user can take a, b, b, c, c has the probability that it should."""
    alpha, tries = 1.5, 6000
    index = ImageIndex.of(
        [ImageRecord("u", str(image), "train", ((name,), ())) for image, name in enumerate("abbcc")]
    )
    expected: dict[str, float] = {}

    def follow(taken: str, probability: float) -> None:
        left = Counter("abbcc") - Counter(taken)
        weights = {
            name: alpha * number / left.total() + taken.count(name) for name, number in left.items()
        }
        if not left:
            expected[taken] = probability
        for name, weight in weights.items():
            follow(taken + name, probability * weight / sum(weights.values()))

    follow("", 1.0)
    found = Counter(
        "".join(
            "abbcc"[row] for row in dirichlet(index, alpha=alpha, labels="coarse", seed=seed).rows
        )
        for seed in range(tries)
    )
    assert len(expected) == 30
    chi_squared = sum((found[k] - tries * p) ** 2 / (tries * p) for k, p in expected.items())
    assert chi_squared < 66  # 99.99 % of 29 degrees of freedom


def test_users_take_their_turns_in_random_order() -> None:
    """The first to take has one label, since none has run out; it is not always the same user."""
    index = of_one_label([3] * 8, [0.5, 0.5])
    mixed = np.zeros(8, dtype=np.int64)
    for seed in range(300):
        deal = dirichlet(index, alpha=1e-9, labels="coarse", seed=seed)
        mixed += (histograms(index, deal) > 0).all(axis=1)
    assert mixed.min() > 0.5 * mixed.mean()


def test_an_image_stands_for_any_of_its_labels() -> None:
    """Images that have a and b go to users of a and to users of b alike."""
    labels = [("a",), ("b",), ("a", "b"), ("a", "b")] * 1000
    index = ImageIndex.of(
        [
            ImageRecord(f"{image // 4:04d}", f"{image:04d}", "train", (names, ()))
            for image, names in enumerate(labels)
        ]
    )
    counts = histograms(index, dirichlet(index, alpha=1e-9, labels="coarse", seed=0))
    of_a, of_b = (counts[:, column] == 4 for column in (0, 1))
    assert (of_a | of_b).sum() >= 998
    # Half the images of a user of a are of a alone, and the other half of b too.
    for user, other in ((of_a, 1), (of_b, 0)):
        assert counts[user, other].mean() == pytest.approx(2, abs=4.5 / math.sqrt(500))


@pytest.mark.parametrize("skew", [0.5, 1.0, 2.0])
def test_sizes_have_the_gini_coefficient_of_the_log_normal_law(skew: float) -> None:
    index = of_one_label([60] * 400, [0.5, 0.5])
    found = []
    for seed in range(8):
        sizes = np.sort(quantity(index, skew=skew, seed=seed).sizes)
        assert sizes.sum() == 24_000
        assert sizes.min() >= 1
        ranks = np.arange(1, 401)
        found.append((2 * ranks - 401) @ sizes / (400 * sizes.sum()))
    # One image in 60 is each user's own, and not shared out by the law.
    assert np.mean(found) == pytest.approx(59 / 60 * math.erf(skew / 2), rel=0.05)


def test_quantity_at_its_ends() -> None:
    index = of_one_label([1, 2, 9], [0.5, 0.5])
    assert quantity(index, skew=0, seed=0).sizes.tolist() == [4, 4, 4]
    assert sorted(quantity(index, skew=1e6, seed=0).sizes.tolist()) == [1, 1, 10]
    assert quantity(of_one_label([1, 1], [0.5, 0.5]), skew=2, seed=0).sizes.tolist() == [1, 1]


def test_constant_sizes_with_a_smaller_last_user() -> None:
    index = of_one_label([1] * 1003, [0.5, 0.5])
    deal = iid_constant(index, images_per_user=10, seed=0)
    assert deal.sizes.tolist() == [10] * 100 + [3]
    assert deal.user_ids[:2] + deal.user_ids[-1:] == ("iid-000", "iid-001", "iid-100")
    assert iid_constant(index, images_per_user=59, seed=0).sizes.tolist() == [59] * 17
    assert iid_constant(index, images_per_user=2000, seed=0).sizes.tolist() == [1003]


def test_a_made_up_user_may_not_be_one_of_val() -> None:
    source = Memory(
        ImageRecord(user, user, split, ((), ()))
        for user, split in (("a", "train"), ("iid-0", "val"))
    )
    with pytest.raises(DataError, match="no other split, found 'iid-0' in val or test too"):
        repartition(source, partial(iid_constant, images_per_user=5, seed=0))


@pytest.mark.parametrize("method", METHODS)
def test_a_collection_without_train_images_stays_without(method: str) -> None:
    source = Memory([ImageRecord("a", "1", "val", (("x",), ()))])
    dealt = repartition(source, partial(METHODS[method], seed=0))
    assert owners(dealt.index) == {}
    assert owners(dealt.index, "val") == {"a": ("1",)}


def test_images_are_left_out_after_the_deal_and_pixels_go_with_ids() -> None:
    plain = open_dataset("openclipart", labels="coarse", image_size=16)
    options: dict[str, Any] = {"labels": "coarse", "image_size": 16, "max_images_per_user": 5}
    dataset = open_dataset("openclipart", **options, dealing=partial(iid, seed=0))
    copy = pickle.loads(pickle.dumps(dataset))
    index = build.open_images(RunConfig(name="x").data).index
    dealt = iid(index, seed=0)
    starts = np.concatenate([[0], np.cumsum(dealt.sizes)])
    kept = [row for a, b in pairwise(starts) for row in dealt.rows[a:b][:5]]
    assert dataset.users("train").num_images.tolist() == np.minimum(dealt.sizes, 5).tolist()
    assert set(dataset.left_out()) == {index.image_ids[r] for r in set(dealt.rows) - set(kept)}
    some = np.array([0, 7, len(kept) - 1])
    expected_examples = plain.load("train", np.array(kept)[some])
    for opened in (dataset, copy):
        found = opened.load("train", some)
        assert (found.images == expected_examples.images).all()
        assert (found.labels == expected_examples.labels).all()
    assert dataset.info().index_sha256 != plain.info().index_sha256
    assert dataset.info().content_sha256 is None


@pytest.mark.parametrize("method", METHODS)
def test_what_is_written_reads_back_the_same(method: str, tmp_path: Path) -> None:
    source = Memory(made_up())
    dealt = repartition(source, partial(METHODS[method], seed=0))
    path = tmp_path / "dealt.csv"
    write_partition(dealt.index, path)
    again = repartition(source, partial(read_partition, path=str(path)))
    assert again.index.sha256() == dealt.index.sha256()
    other_order = Memory(reversed(made_up()))
    again = repartition(other_order, partial(read_partition, path=str(path)))
    assert owners(again.index) == owners(dealt.index)
    assert [p.name for p in tmp_path.iterdir()] == ["dealt.csv"]


def small() -> Memory:
    return Memory(
        ImageRecord(user, image, split, ((), ()))
        for user, image, split in (
            ("0123", '1,"a"', "train"),
            ("0123", "2\r", "train"),
            ("é", "03", "train"),
            ("v", "4", "val"),
            ("t", "5", "test"),
        )
    )


def test_the_file_is_plain_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_partition(small().index, path)
    text = 'image_id,user_id\r\n"1,""a""",0123\r\n"2\r",0123\r\n03,é\r\n'
    assert path.read_bytes() == text.encode()
    # As somebody else may write it: byte order mark, line feeds, empty lines, another order.
    text = '\ufeffimage_id,user_id\n03,B\n\n"2\r",A\n"1,""a""",B\n\n'
    path.write_bytes(text.encode())
    dealt = repartition(small(), partial(read_partition, path=str(path)))
    assert list(owners(dealt.index).items()) == [("A", ("2\r",)), ("B", ("03", '1,"a"'))]


def test_every_fault_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = ["image_id,user_id", "03,A", "4,A", "3,A", "03,B", '"2\r"', '"2\r",', "5,v", '"2\r",t']
    path.write_bytes("\n".join(lines).encode())
    with pytest.raises(DataError) as caught:
        repartition(small(), partial(read_partition, path=str(path)))
    assert str(caught.value).splitlines() == [
        f"{path}: expected no faults, found 8; mend them in the source:",
        "  line 3: image '4' must be of the train split, found in val",
        "  line 4: image '3' must be of the train split, found in no split",
        "  line 5: image '03' must be named once, found in line 2 too",
        "  line 7: expected an image id and a user id, found '2\\r'",
        "  line 9: expected an image id and a user id, found '2\\r,'",
        "  line 10: image '5' must be of the train split, found in test",
        "  line 12: user 't' must be in one split, found in test too",
        "  image '1,\"a\"' of the train split must be named, found nowhere",
    ]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "found No such file or directory"),
        (b"", "expected the first line image_id,user_id, found ''"),
        (b"user_id,image_id\nA,03\n", "found 'user_id,image_id'"),
        (b"image_id,user_id\n\xff,A\n", "expected CSV in UTF-8, found 'utf-8' codec"),
        (b'image_id,user_id\n"03,A\n', "expected CSV in UTF-8, found unexpected end of data"),
        (b"image_id,user_id\n" + b"3" * 200_000 + b",A\n", "field larger than field limit"),
        (b"image_id,user_id\n03\0,A\n", "must be of the train split, found in no split"),
    ],
)
def test_a_file_of_another_kind_gets_one_sentence(
    content: bytes | None, found: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=found) as caught:
        read_partition(small().index, path=str(path))
    assert str(path) in str(caught.value)


def test_a_partition_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found No such file or directory; choose another path"):
        write_partition(small().index, tmp_path / "none" / "a.csv")


@pytest.mark.parametrize("ends", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_partition_that_finds_no_room_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: BaseException
) -> None:
    def full(self: Path, target: Path) -> None:
        raise ends

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises((DataError, KeyboardInterrupt)) as caught:
        write_partition(small().index, tmp_path / "a.csv")
    if isinstance(caught.value, DataError):
        assert "found No space left on device; choose another path" in str(caught.value)
    assert not list(tmp_path.iterdir())


SETTINGS: dict[str, dict[str, Any]] = {
    "by_user": {},
    "iid": {},
    "iid_constant": {"images_per_user": 60},
    "dirichlet": {"alpha": 0.1, "labels": "fine"},
    "quantity": {"skew": 1.0},
}


def with_partition(method: str, **settings: Any) -> RunConfig:
    data = {"partition": {"method": method, **settings}}
    return RunConfig.model_validate({"name": "x", "data": data})


def test_settings_deal_as_the_functions_do(tmp_path: Path) -> None:
    index = build.open_images(RunConfig(name="x").data).index
    deals = {
        "iid": iid(index, seed=3),
        "iid_constant": iid_constant(index, images_per_user=60, seed=3),
        "dirichlet": dirichlet(index, alpha=0.1, labels="fine", seed=3),
        "quantity": quantity(index, skew=1.0, seed=3),
    }
    for method, deal in deals.items():
        config = with_partition(method, seed=3, **SETTINGS[method])
        assert build.build_dataset(config).users("train").ids == deal.user_ids
        path = tmp_path / f"{method}.csv"
        write_partition(build.open_images(config.data).index, path)
        again = read_partition(index, path=str(path))
        assert (again.rows == deal.rows).all()
        from_file = build.build_dataset(with_partition("file", path=str(path)))
        assert from_file.users("train").num_images.tolist() == deal.sizes.tolist()
    for config in (RunConfig(name="x"), with_partition("by_user")):
        assert build.open_images(config.data).index.sha256() == index.sha256()
    assert with_partition("iid").model_copy(update={"seed": 7}).data == with_partition("iid").data


def test_a_class_of_one_s_own_deals_itself() -> None:
    data = {"source": "fakes:FakeDataset", "partition": {"method": "iid"}}
    config = RunConfig.model_validate({"name": "x", "data": data})
    with pytest.raises(ConfigError, match=r"data\.partition\.method: expected by_user with the cl"):
        build.build_dataset(config)
    with pytest.raises(ConfigError, match=r"data\.source: expected a collection of images"):
        build.open_images(config.data)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (
            "{method: dirichle, alpha: 1}",
            "data.partition.method: expected one of by_user, iid, iid_constant, dirichlet, "
            "quantity, file, found 'dirichle'; did you mean 'dirichlet'?",
        ),
        ("{method: zzz}", "quantity, file, found 'zzz'; choose one"),
        ("{alpha: 1}", "data.partition.method: expected one of by_user, iid, iid_constant"),
        ("{}", "quantity, file, found none; choose one"),
        ("iid", "data.partition: expected keys with values, found 'iid'; indent them"),
        ("null", "data.partition: expected keys with values, found None; indent them"),
        (
            "{method: dirichlet, alfa: 1}",
            "data.partition.alfa: expected a known key, found 'data.partition.alfa'; did you mean "
            "'alpha'?",
        ),
        ("{method: dirichlet}", "data.partition.alpha: expected a value, found none; add this key"),
        ("{method: dirichlet, alpha: 0}", "data.partition.alpha: expected greater than 0, found 0"),
        ("{method: dirichlet, alpha: .inf}", "data.partition.alpha: expected a finite number"),
        ("{method: quantity, skew: -1}", "data.partition.skew: expected greater than or equal"),
        ("{method: iid, alpha: 1}", "data.partition.alpha: expected a known key"),
        ("{method: by_user, seed: 1}", "the keys here are method"),
        ("{method: iid_constant, images_per_user: 0}", "data.partition.images_per_user: expected"),
        ("{method: file, path: ''}", "data.partition.path: expected"),
    ],
)  # fmt: skip
def test_faults_in_the_settings_name_the_key(partition: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"name: x\ndata:\n  partition: {partition}\n")
    with pytest.raises(ConfigError) as caught:
        load_runs(path)
    assert message in str(caught.value)


def test_the_command_writes_what_runs_train_on(tmp_path: Path) -> None:
    yaml, out = tmp_path / "a.yaml", tmp_path / "out.csv"
    yaml.write_text(
        "name: x\nseeds: [0, 1]\nsweep: {data.partition: [{method: iid}, {method: by_user}]}\n"
    )
    two = CliRunner().invoke(app, ["data", "partition", str(yaml), str(out)])
    assert isinstance(two.exception, ConfigError)
    assert "found 2 of these" in str(two.exception)
    assert not out.exists()
    chosen = ["data.partition={method: iid, seed: 4}"]
    done = CliRunner().invoke(app, ["data", "partition", str(yaml), str(out), *chosen])
    assert done.output == f"{out}: 4,364 train images of 285 users\n"
    index = build.open_images(RunConfig(name="x").data).index
    assert (read_partition(index, path=str(out)).rows == iid(index, seed=4).rows).all()


def test_the_privacy_card_says_that_users_are_made_up() -> None:
    users = UserTable(("a", "b", "c"), np.array([1, 2, 3]))
    central = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "accountant": "rdp"}

    def told(method: str, **settings: Any) -> list[str]:
        tree = with_partition(method, **settings).model_dump()
        tree["federated"] |= {"cohort_size": 2, "num_rounds": 2, "sampling": "poisson"}
        tree["privacy"]["central"] = central
        tree["strategy"] = {"name": "fedavg", "weighting": "uniform"}
        _, spending = federated_privacy(RunConfig.model_validate(tree), users)
        assumptions: list[str] = spending.card(2, 0)["central"]["assumptions"]
        return [text for text in assumptions if "data.partition" in text]

    assert told("by_user") == []
    for method in ("iid", "iid_constant", "dirichlet", "quantity"):
        (text,) = told(method, **SETTINGS[method])
        assert text.startswith(f"users were made up by data.partition ({method}): epsilon protects")
    assert "only if all images of each" in told("file", path="a.csv")[0]


def test_plan_says_it_too_of_every_private_run() -> None:
    tree = with_partition("iid").model_dump()
    private = {"clipping_norm": 1.0, "noise_multiplier": 1.0}
    tree["privacy"]["central"] = private
    tree["strategy"] = {"name": "fedavg", "weighting": "uniform"}
    tree["federated"]["sampling"] = "poisson"
    tree["centralized"] = {"epochs": 1, "user_level": {**private, "epochs": 1}}
    entries = plan_runs({"a": RunConfig.model_validate(tree)})
    assert len(entries) == 2
    for entry in entries:
        assert "users were made up by data.partition (iid)" in " ".join(entry["assumptions"])
