import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsim.data.index import ImageIndex, ImageRecord, LabelRows, StringTable, offsets_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(TEXT))
def test_a_string_table_gives_the_strings_back(strings: list[str]) -> None:
    table = StringTable.of(strings)
    assert len(table) == len(strings)
    assert [table[i] for i in range(len(table))] == strings
    assert table.cut(0, len(strings)) == tuple(strings)
    assert table.cut(1, 3) == tuple(strings[1:3])
    assert table.blob == "".join(strings).encode()


@given(
    st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=9),
)
def test_dense_labels_match_a_plain_loop(labels: list[set[int]], picks: list[int]) -> None:
    rows = LabelRows(
        names=tuple("abcde"),
        indptr=offsets_of([len(row) for row in labels]),
        indices=np.array([k for row in labels for k in sorted(row)], dtype=np.uint16),
    )
    picks = [pick % len(labels) for pick in picks]
    expected = np.zeros((len(picks), 5), dtype=np.uint8)
    for place, pick in enumerate(picks):
        for label in labels[pick]:
            expected[place, label] = 1
    dense = rows.dense(np.array(picks, dtype=np.int64))
    assert dense.dtype == np.uint8
    assert np.array_equal(dense, expected)


def test_the_hash_sees_every_part() -> None:
    base = ("u", "i", "train", (("a",), ("b",)))
    variants = [
        ("v", *base[1:]),
        ("u", "j", *base[2:]),
        ("u", "i", "val", base[3]),
        ("u", "i", "train", (("b",), ("b",))),
        ("u", "i", "train", (("a",), ())),
        ("ui", "", "train", base[3]),
    ]
    hashes = {ImageIndex.of([ImageRecord(*fields)]).sha256() for fields in (base, *variants)}
    assert len(hashes) == 1 + len(variants)
    assert ImageIndex.of([ImageRecord(*base)]).sha256() in hashes


def test_users_are_sorted_by_code_point_within_a_split() -> None:
    ids = ["é", "Z", "a", "10", "9", "🦋", "\ufb01"]
    index = ImageIndex.of([ImageRecord(user, user, "val", ((), ())) for user in ids])
    assert index.users_of("train") == (0, 0)
    assert index.users_of("val") == (0, len(ids))
    assert index.users_of("test") == (len(ids), len(ids))
    assert list(index.user_ids.cut(0, len(ids))) == sorted(ids)
