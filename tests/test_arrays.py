import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.arrays import add_difference, coordinate_runs, is_finite, l2_norm, zeros_like
from fedsim.streams import torch_stream


@given(st.lists(st.integers(0, 9000), max_size=4), st.integers(0, 100))
def test_norm_equals_double_precision(sizes: list[int], seed: int) -> None:
    generator = torch_stream(seed, "norm")
    tensors = [torch.randn(size, generator=generator) for size in sizes]
    exact = math.sqrt(sum(float(t.double().square().sum()) for t in tensors))
    assert l2_norm(tensors) == pytest.approx(exact, rel=5e-7)


def test_norm_of_many_elements_is_accurate_where_float32_is_not() -> None:
    tensor = torch.randn(2_000_000, generator=torch_stream(0, "norm"))
    exact = math.sqrt(float(tensor.double().square().sum()))
    assert l2_norm([tensor]) == pytest.approx(exact, rel=5e-7)


def test_norm_of_equal_elements() -> None:
    """The worst case of a running sum in float32: a million of them are 7e-4 off."""
    for size in (256, 4096, 1_000_000):
        assert l2_norm([torch.full((size,), 0.1)]) == pytest.approx(
            float(torch.tensor(0.1)) * math.sqrt(size), rel=5e-7
        )


def test_norm_of_shapes_layouts_and_extremes() -> None:
    image = torch.randn(8, 3, 16, 16, generator=torch_stream(0, "x"))
    strided = image.contiguous(memory_format=torch.channels_last)
    assert l2_norm([strided]) == pytest.approx(l2_norm([image]), rel=5e-7)
    assert l2_norm([torch.tensor(3.0), torch.tensor([4.0])]) == 5.0
    assert l2_norm([torch.full((2,), 1e25)]) == pytest.approx(math.sqrt(2) * 1e25, rel=1e-6)
    assert math.isnan(l2_norm([torch.tensor([1.0, float("nan")])]))
    assert math.isinf(l2_norm([torch.tensor([1.0, float("inf")])]))
    assert l2_norm([torch.ones(3, dtype=torch.float64)]) == pytest.approx(math.sqrt(3), rel=1e-15)


def test_zeros_are_contiguous() -> None:
    image = torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    zeros = zeros_like({"w": image})["w"]
    assert zeros.is_contiguous()
    assert not zeros.any()


@given(
    st.lists(
        st.sampled_from([(), (3,), (256,), (300, 300), (131_072,), (131_073,)]),
        min_size=1,
        max_size=5,
    ),
    st.floats(0.1, 50),
)
def test_the_single_pass_gives_the_bits_of_three(shapes: list[tuple[int, ...]], weight) -> None:
    generator = torch_stream(0, "difference")
    new, old, total = ([torch.randn(s, generator=generator) for s in shapes] for _ in range(3))
    expected = [tensor.clone() for tensor in total]
    difference = list(torch._foreach_sub(new, old))
    torch._foreach_add_(expected, difference, alpha=weight)
    norm = add_difference(total, new, old, weight)
    assert all(torch.equal(a, b) for a, b in zip(total, expected, strict=True))
    assert norm == pytest.approx(l2_norm(difference), rel=1e-7)


def test_the_single_pass_sees_what_is_not_finite_or_huge() -> None:
    for value, norm in ((float("nan"), math.isnan), (float("inf"), math.isinf)):
        new = [torch.zeros(140_000), torch.tensor(0.0)]
        new[0][139_999] = value
        old = [torch.zeros(140_000), torch.tensor(0.0)]
        assert norm(add_difference([t.clone() for t in old], new, old, 1.0))
    huge = [torch.full((2,), 1e25)]
    total = [torch.zeros(2)]
    assert add_difference(total, huge, [torch.zeros(2)], 1.0) == pytest.approx(2**0.5 * 1e25)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_element_that_is_not_finite_is_found(value: float, dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 1000, generator=torch_stream(0, "finite")).to(dtype)
    assert is_finite(tensor)
    tensor[1, 777] = value
    assert not is_finite(tensor)
    assert is_finite(torch.empty(0))
    assert is_finite(torch.tensor([1, 2]))
    assert is_finite(torch.full((2,), 3e38))


@pytest.mark.parametrize("at_a_time", [1, 7, 10_000])
def test_updates_side_by_side_are_all_there_once(at_a_time: int, monkeypatch) -> None:
    monkeypatch.setattr("fedsim.arrays._SIDE_BY_SIDE", at_a_time)
    updates = [
        {"matrix": torch.arange(6.0).view(2, 3).T + 10 * user, "scalar": torch.tensor(1.0 * user)}
        for user in range(3)
    ]
    rebuilt = [zeros_like(update) for update in updates]
    for name, run, values in coordinate_runs(updates):
        assert values.is_contiguous()
        assert values.numel() <= max(at_a_time, len(updates))
        for user, arrays in enumerate(rebuilt):
            arrays[name].view(-1)[run] = values[:, user]
    for update, again in zip(updates, rebuilt, strict=True):
        assert all(torch.equal(update[name], again[name]) for name in update)
