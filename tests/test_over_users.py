import dataclasses

import numpy as np
import pytest

from fedsim.errors import DataError
from fedsim.kept_scores import KeptScores, keep_scores
from fedsim.metrics import average_precision
from fedsim.over_users import UserResamples
from fedsim.streams import numpy_stream

NUM_USERS = 9
OWNER = np.repeat(np.arange(NUM_USERS, dtype=np.int32), np.arange(1, NUM_USERS + 1))
TARGETS = numpy_stream(0, "targets").random((len(OWNER), 3)) < [0.5, 0.3, 0.1]


def kept(strength, seed):
    noise = numpy_stream(seed, "scores").standard_normal(TARGETS.shape)
    logits = (noise + strength * TARGETS).astype(np.float32)
    users = tuple(f"u{i}" for i in range(NUM_USERS))
    return KeptScores(logits, TARGETS, OWNER, users, ("a", "b", "c"))


@pytest.fixture
def folders(tmp_path):
    """Two seeds of a strong model, then three of a weak one."""
    paths = []
    for i, scores in enumerate([kept(3, 0), kept(3, 1), kept(0, 2), kept(0, 3), kept(0, 4)]):
        paths.append(tmp_path / f"run{i}")
        paths[-1].mkdir()
        keep_scores(paths[-1], scores)
    return paths


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_seeds_are_averaged_within_each_resample_of_the_same_users(folders, average):
    runs = [kept(3, 0), kept(3, 1), kept(0, 2), kept(0, 3), kept(0, 4)]
    counts = numpy_stream(5, "bootstrap").multinomial(NUM_USERS, [1 / NUM_USERS] * NUM_USERS, 40)
    differences = []
    for draw in counts:
        rows = np.repeat(np.arange(len(OWNER)), draw[OWNER])
        values = [average_precision(TARGETS[rows], r.logits[rows], average=average) for r in runs]
        differences.append(np.mean(values[:2]) - np.mean(values[2:]))
    users = UserResamples(40, seed=5)
    found = users.difference(folders[:2], folders[2:], f"{average}_ap", confidence=0.9)
    assert found == pytest.approx(np.quantile(differences, [0.05, 0.95]), rel=1e-12)
    assert found[0] > 0
    turned = users.difference(folders[2:], folders[:2], f"{average}_ap", confidence=0.9)
    assert turned == pytest.approx((-found[1], -found[0]), rel=1e-12)


def test_a_run_does_not_differ_from_itself(folders):
    assert UserResamples(50).difference(folders[:2], folders[:2], "macro_ap") == (0, 0)


def test_the_same_users_are_drawn_for_both(folders):
    """Two runs that differ in one image hardly differ, though each alone varies a lot."""
    changed = kept(3, 0).logits.copy()
    changed[0] += 0.01
    keep_scores(folders[1], dataclasses.replace(kept(3, 0), logits=changed))
    low, high = UserResamples(50).difference(folders[:1], folders[1:2], "macro_ap")
    assert high - low < 0.02


def test_other_test_users_are_refused(folders):
    keep_scores(folders[1], dataclasses.replace(kept(3, 0), user_ids=tuple("abcdefghi")))
    with pytest.raises(DataError, match=r"run1: expected runs on the same test split"):
        UserResamples(5).difference(folders[:1], folders[1:2], "macro_ap")


def test_equal_models_do_not_differ_in_about_nineteen_samples_of_twenty(tmp_path):
    """Users of one taste each, who score alike under two models of equal strength."""
    rng, held = numpy_stream(0, "equal models"), 0
    for sample in range(100):
        taste, luck = rng.random((60, 3)) * [0.6, 0.4, 0.2], rng.standard_normal((2, 60, 3))
        owner = np.repeat(np.arange(60, dtype=np.int32), rng.integers(1, 7, 60))
        targets = rng.random((len(owner), 3)) < taste[owner]
        noise = rng.standard_normal((2, *targets.shape))
        folders = [tmp_path / f"{sample}-{side}" for side in (0, 1)]
        for folder, of_user, of_image in zip(folders, luck, noise, strict=True):
            folder.mkdir()
            logits = (of_image + 0.5 * of_user[owner] + targets).astype(np.float32)
            users = tuple(f"{i:02}" for i in range(60))
            keep_scores(folder, KeptScores(logits, targets, owner, users, ("a", "b", "c")))
        low, high = UserResamples(200).difference(folders[:1], folders[1:], "macro_ap")
        held += low <= 0 <= high
    assert 89 <= held <= 99
