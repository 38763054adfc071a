import numpy as np
import torch

from fedsim.streams import _fresh_mt_state, global_torch_stream, numpy_stream, torch_stream


def test_streams_are_functions_of_their_keys() -> None:
    def draw(*keys):
        return torch.rand(4, generator=torch_stream(*keys)).tolist()

    names = [
        (0, "a", 1, "u"),
        (1, "a", 1, "u"),
        (0, "b", 1, "u"),
        (0, "a", 2, "u"),
        (0, "a", 1, "v"),
    ]
    draws = [draw(*keys) for keys in names]
    assert draws == [draw(*keys) for keys in names]
    assert len({tuple(d) for d in draws}) == len(names)
    # Concatenated keys would make these the same.
    assert draw(0, "a", "b", "c") != draw(0, "a", "bc")
    assert draw(0, "a", 1) != draw(0, "a", "1")


def test_the_whole_state_is_filled_where_manual_seed_keeps_32_bits() -> None:
    low, high = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5 + 2**40)
    assert torch.equal(torch.rand(3, generator=low), torch.rand(3, generator=high))
    words = torch_stream(0, "noise", 1).get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
    assert len(np.unique(words)) > 620


def test_the_state_layout_is_that_of_the_mersenne_twister() -> None:
    """NumPy's legacy generator, seeded alike, holds the same 624 words at the same place."""
    state = torch.Generator().manual_seed(12345).get_state().numpy()
    words = state[24 : 24 + 8 * 624].view(np.uint64)
    assert (words == np.random.RandomState(12345).get_state()[1]).all()
    assert len(_fresh_mt_state()) == len(state)


def test_draws_are_uniform_and_normal() -> None:
    uniform = torch.rand(200_000, generator=torch_stream(7, "check")).double()
    assert abs(float(uniform.mean()) - 0.5) < 0.003
    assert abs(float(uniform.var()) - 1 / 12) < 0.001
    normal = torch.randn(200_000, generator=torch_stream(7, "check")).double()
    assert abs(float(normal.mean())) < 0.01
    assert abs(float(normal.var()) - 1) < 0.02


def test_first_draws_of_neighbouring_streams_are_uncorrelated() -> None:
    firsts = np.array(
        [torch.rand(1, generator=torch_stream(0, "noise", r)).item() for r in range(2000)]
    )
    assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 0.08
    assert abs(firsts.mean() - 0.5) < 0.03


def test_global_state_is_left_as_it_was() -> None:
    torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    numpy_stream(0, "x").normal()
    torch.randn(3, generator=torch_stream(0, "x"))
    with global_torch_stream(0, "model", 1, "u"):
        first = torch.rand(3)
    with global_torch_stream(0, "model", 1, "u"):
        assert torch.equal(first, torch.rand(3))
    assert torch.equal(torch.random.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
