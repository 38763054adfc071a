import pytest
import torch
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy.multikrum import compute_distances
from made_up_updates import SHAPES, assert_same, constant, flat, flowers, honest, ours

from fedsim.errors import ConfigError
from fedsim.flower_seam import to_record
from fedsim_strategies.krum import Krum, krum_scores, squared_distances

EXAMPLES = [4, 1, 7, 2, 9, 3, 5, 8, 6]


@pytest.mark.parametrize("num_malicious", [0, 1, 3])
def test_it_is_flowers_krum(num_malicious: int) -> None:
    """Flower scores the users' arrays, fedsim their updates: the distances are the same."""
    updates = honest(9)
    found = ours(Krum(num_malicious=num_malicious), updates, EXAMPLES)
    twin = flower.Krum(num_malicious_nodes=num_malicious)
    assert_same(found, flowers(twin, updates, EXAMPLES))


def test_multi_krum_is_flowers_where_users_hold_the_same() -> None:
    """The paper averages the selected vectors; Flower weights them by their examples."""
    updates = honest(9)
    found = ours(Krum(num_malicious=2, num_selected=4), updates, EXAMPLES)
    twin = flower.MultiKrum(num_malicious_nodes=2, num_nodes_to_select=4)
    assert_same(found, flowers(twin, updates, [5] * 9))
    weighted = flowers(twin, updates, EXAMPLES)
    assert any((found[name] - weighted[name]).abs().max() > 1e-2 for name in SHAPES)


def test_scores_by_hand() -> None:
    """Users at 0, 1, 3 and 7 on a line, nobody malicious: two closest others each."""
    place = torch.tensor([0.0, 1.0, 3.0, 7.0], dtype=torch.float64)
    distances = (place[:, None] - place[None, :]) ** 2
    assert krum_scores(distances, 0).tolist() == [1 + 9, 1 + 4, 4 + 9, 16 + 36]


def test_distances_keep_their_digits_where_users_agree() -> None:
    """A common part 10,000 times as large as the differences: float32 has nothing left of them."""
    updates = honest(9, spread=1e-2, center=100.0)
    vectors = torch.stack([flat(update) for update in updates])
    exact = ((vectors[:, None] - vectors[None, :]) ** 2).sum(dim=2)
    torch.testing.assert_close(squared_distances(updates), exact, rtol=1e-6, atol=1e-8)
    in_float32 = torch.from_numpy(compute_distances([to_record(update) for update in updates]))
    assert (in_float32 - exact).abs().max() > exact.max()


def test_ties_go_to_the_first_of_the_cohort() -> None:
    updates = [constant(value) for value in (9.0, 1.0, 2.0, 2.0, 1.0)]
    found = ours(Krum(num_malicious=0), updates, [1] * 5)
    assert_same(found, constant(1.0), tolerance=0)


def test_too_few_users_for_the_guarantee_are_refused() -> None:
    krum = Krum(num_malicious=2)
    ours(krum, honest(7), [1] * 7)
    with pytest.raises(ConfigError, match=r"at least 7 users in a round for num_malicious 2"):
        ours(krum, honest(6), [1] * 6)
    with pytest.raises(ConfigError, match="at least 8 users"):
        ours(Krum(num_malicious=1, num_selected=8), honest(7), [1] * 7)
    with pytest.raises(ConfigError, match=r"strategy\.num_malicious: expected a whole number"):
        Krum(num_malicious=-1)
