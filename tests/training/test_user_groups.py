"""Groups of users hold the loop's batches, each user's once a step."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.training.local import LocalSettings, shuffled_batches
from fedsim.training.user_groups import grouped


def stream(place: int) -> torch.Generator:
    return torch.Generator().manual_seed(place)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    batch_size=st.integers(1, 17),
    epochs=st.integers(1, 3),
    at_once=st.integers(1, 5),
)
def test_batches_are_the_loops(
    sizes: list[int], batch_size: int, epochs: int, at_once: int
) -> None:
    settings = LocalSettings(epochs, batch_size, learning_rate=0.1)
    seen = []
    for group in grouped(np.array(sizes), settings, at_once):
        seen += group.places.tolist()
        assert len(group.places) <= at_once
        assert (np.diff(group.num_steps) <= 0).all()
        batches = group.batches(settings, stream)
        assert batches.shape == (group.num_steps[0], len(group.places), group.rows)
        first = 0
        for user, place in enumerate(group.places.tolist()):
            expected = list(shuffled_batches(sizes[place], batch_size, epochs, stream(place)))
            found = batches[: group.num_steps[user], user]
            assert len(found) == len(expected)
            for rows, order in zip(found, expected, strict=True):
                real = rows[: len(order)] - first
                assert (rows[len(order) :] == -1).all()
                if sizes[place] <= batch_size:  # all in one batch, whose order does not matter
                    order = order.sort().values
                assert real.tolist() == order.tolist()
            assert (batches[group.num_steps[user] :, user] == -1).all()
            first += sizes[place]
    assert sorted(seen) == list(range(len(sizes)))


@pytest.mark.parametrize(("size", "rows"), [(1, 4), (4, 4), (5, 16), (16, 16), (300, 16)])
def test_padding_depends_on_the_user_alone(size: int, rows: int) -> None:
    settings = LocalSettings(2, 16, learning_rate=0.1)
    for others in ([], [1], [40, 3], [16] * 20):
        groups = grouped(np.array([size, *others]), settings, 8)
        assert [group.rows for group in groups if 0 in group.places] == [rows]
