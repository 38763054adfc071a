"""Draws of a key: what they are made of, their laws, and that the key is not shown."""

import hashlib
import math

import numpy as np
from scipy import stats

from fedsim.secret import Secret

SECRET = Secret(bytes(range(32)))


def test_uniform_numbers_are_the_words_of_shake_256() -> None:
    name = b"('noise', 3, 'w')"
    digest = hashlib.shake_256(bytes(range(32)) + name).digest(40)
    words = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 40, 8)]
    expected = [(word // 2**12 + 0.5) / 2**52 for word in words]
    assert SECRET.uniform(5, "noise", 3, "w").tolist() == expected


def test_normal_numbers_are_box_and_muller_s_of_the_uniform_ones() -> None:
    u = SECRET.uniform(4, "noise")
    length = [math.sqrt(-2 * math.log(u[i])) for i in (0, 1)]
    expected = [length[i] * math.cos(2 * math.pi * u[2 + i]) for i in (0, 1)]
    expected += [length[0] * math.sin(2 * math.pi * u[2])]
    np.testing.assert_allclose(SECRET.normal(3, "noise"), expected, rtol=1e-12)


def test_laws() -> None:
    uniform, normal = SECRET.uniform(200_000, "a"), SECRET.normal(200_001, "a")
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    assert stats.kstest(normal, "norm").pvalue > 1e-3
    for lag in (1, 100_001):  # neighbours, and the two halves of a pair
        assert abs(np.corrcoef(normal[:-lag], normal[lag:])[0, 1]) < 0.015


def test_purposes_keys_and_secrets_tell_draws_apart() -> None:
    draws = [
        SECRET.uniform(3, "a", 1),
        SECRET.uniform(3, "a", "1"),
        SECRET.uniform(3, "a", 1, 1),
        SECRET.uniform(3, "b", 1),
        Secret(bytes(32)).uniform(3, "a", 1),
    ]
    assert len({number for draw in draws for number in draw.tolist()}) == 15


def test_a_new_secret_is_long_new_and_not_shown() -> None:
    one, two = Secret.new(), Secret.new()
    assert len(one.key) == 32
    assert one != two
    assert repr(one) == "Secret()"
