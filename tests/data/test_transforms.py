"""Transforms beside torchvision's and Pillow's, and by where each pixel came from."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from fedsim.data.transforms import Transform, random_box
from fedsim.errors import ConfigError, DataError

HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
RAW = ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))  # inputs are pixel values
AUGMENTATIONS: list[Any] = ["none", "flip", "random_crop", "random_resized_crop"]


def noise(n: int, size: int) -> torch.Tensor:
    pixels = np.random.default_rng(size).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def maps(n: int, size: int) -> torch.Tensor:
    """Images whose red is the row and whose green is the column."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    image = torch.stack([rows, columns, torch.zeros_like(rows)]).to(torch.uint8)
    return image.expand(n, -1, -1, -1)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 4), st.integers(2, 9), st.sampled_from([HALF, IMAGENET]), st.booleans())
def test_normalization(n: int, size: int, statistics: Any, contiguous: bool) -> None:
    images = noise(n, size)
    if contiguous:
        images = images.contiguous()
    before = images.clone()
    inputs = Transform("none", size, *statistics).eval_batch(images)
    mean, std = (torch.tensor(s, dtype=torch.float64).view(3, 1, 1) for s in statistics)
    expected = (images.double() / 255 - mean) / std
    torch.testing.assert_close(inputs.double(), expected, rtol=0, atol=1e-6)
    assert inputs.dtype == torch.float32
    assert torch.equal(images, before)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(AUGMENTATIONS), st.integers(0, 3), st.integers(5, 8))
def test_inputs_lie_channels_last(augmentation: Any, n: int, size: int) -> None:
    inputs = Transform(augmentation, 5, *HALF).train_batch(noise(n, size), torch.Generator())
    assert inputs.shape == (n, 3, 5, 5)
    assert inputs.stride() == (75, 1, 15, 3)


@pytest.mark.parametrize(("loaded", "size"), [(64, 32), (50, 32), (16, 24)])
def test_evaluation_resizes_as_pillow_does(loaded: int, size: int) -> None:
    images = noise(2, loaded)
    resized = Transform("none", size, *RAW).eval_batch(images).permute(0, 2, 3, 1).numpy()
    for image, found in zip(images.permute(0, 2, 3, 1).numpy(), resized, strict=True):
        expected = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)
        assert np.abs(np.asarray(expected) - found).max() <= 1.001


@pytest.mark.parametrize("augmentation", ["none", "flip"])
def test_training_resizes_like_evaluation(augmentation: Any) -> None:
    transform, images = Transform(augmentation, 5, *RAW), noise(8, 9)
    trained = transform.train_batch(images, torch.Generator().manual_seed(0))
    expected = transform.eval_batch(images)
    for found, plain in zip(trained, expected, strict=True):
        assert torch.equal(found, plain) or torch.equal(found, plain.flip(-1))


def test_without_augmentation_nothing_is_drawn() -> None:
    transform, generator = Transform("none", 4, *HALF), torch.Generator()
    before = generator.get_state()
    assert torch.equal(
        transform.train_batch(noise(3, 4), generator), transform.eval_batch(noise(3, 4))
    )
    assert torch.equal(generator.get_state(), before)
    assert not transform.is_random


@pytest.mark.parametrize("augmentation", AUGMENTATIONS[1:])
def test_all_draws_come_from_the_generator(augmentation: Any) -> None:
    transform, images = Transform(augmentation, 5, *HALF), noise(8, 9)
    assert transform.is_random
    before = torch.get_rng_state()
    a, b, c = (
        transform.train_batch(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), before)


def chi_square(counts: Counter[Any], outcomes: int) -> float:
    expected = counts.total() / outcomes
    return sum((n - expected) ** 2 for n in counts.values()) / expected + expected * (
        outcomes - len(counts)
    )


def test_flip_mirrors_half_of_the_images_left_to_right() -> None:
    inputs = Transform("flip", 4, *RAW).train_batch(maps(2000, 4), torch.Generator().manual_seed(0))
    assert torch.equal(inputs[:, 0].round(), maps(2000, 4)[:, 0].float())
    counts = Counter(round(corner) for corner in inputs[:, 1, 0, 0].tolist())
    assert set(counts) == {0, 3}
    assert chi_square(counts, 2) < 10.8  # p = 0.001


def test_random_crop_is_uniform_over_positions_and_mirrors() -> None:
    transform, n = Transform("random_crop", 4, *RAW), 3600
    inputs = transform.train_batch(maps(n, 6), torch.Generator().manual_seed(0)).round()
    rows, columns = inputs[:, 0, :, 0], inputs[:, 1, 0, :]
    assert torch.equal(inputs[:, 0], rows[:, :, None].expand(n, 4, 4))
    assert torch.equal(inputs[:, 1], columns[:, None, :].expand(n, 4, 4))
    steps = torch.stack([rows.diff().unique(dim=1), columns.diff().unique(dim=1)])
    assert steps.shape == (2, n, 1)  # each crop goes evenly up or down, left or right
    counts = Counter(
        zip(
            rows.amin(1).tolist(), columns.amin(1).tolist(), *steps.squeeze(2).tolist(), strict=True
        )
    )
    assert {outcome[:2] for outcome in counts} == {(i, j) for i in range(3) for j in range(3)}
    assert {outcome[2:] for outcome in counts} == {(i, j) for i in (-1, 1) for j in (-1, 1)}
    assert chi_square(counts, 36) < 66.6  # p = 0.001


def torchvision_box(height: int, width: int, seed: int) -> tuple[int, ...]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        box = v2.RandomResizedCrop(8).make_params([torch.empty(3, height, width)])
    return box["top"], box["left"], box["height"], box["width"]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**31))
def test_boxes_are_torchvisions(height: int, width: int, seed: int) -> None:
    found = random_box(height, width, torch.Generator().manual_seed(seed))
    assert found == torchvision_box(height, width, seed)


@pytest.mark.parametrize(
    ("height", "width", "box"), [(2, 100, (0, 48, 2, 3)), (100, 2, (48, 0, 3, 2))]
)
def test_boxes_that_never_fit_are_central(
    height: int, width: int, box: tuple[int, int, int, int]
) -> None:
    for seed in range(20):
        assert torchvision_box(height, width, seed) == box
        assert random_box(height, width, torch.Generator().manual_seed(seed)) == box


def test_random_resized_crop_cuts_a_box_out_of_each_image() -> None:
    images, generator = noise(6, 40), torch.Generator().manual_seed(0)
    boxes = [random_box(40, 40, generator) for _ in images]
    inputs = Transform("random_resized_crop", 16, *RAW).train_batch(
        images, torch.Generator().manual_seed(0)
    )
    mirrors = 0
    for image, box, found in zip(images, boxes, inputs, strict=True):
        expected = v2.functional.resized_crop(image, *box, [16, 16]).float()
        mirrored = torch.allclose(found, expected.flip(-1), atol=1e-3)
        assert mirrored or torch.allclose(found, expected, atol=1e-3)
        mirrors += mirrored
    assert 0 < mirrors < 6


def test_a_crop_that_is_larger_than_the_image_is_refused() -> None:
    with pytest.raises(DataError, match="at least 224x224 pixels to crop from, found 32x32"):
        Transform("random_crop", 224, *HALF).train_batch(noise(1, 32), torch.Generator())


@pytest.mark.parametrize("images", [torch.zeros(1, 3, 4, 4), noise(1, 4)[0], noise(1, 4)[:, :1]])
def test_images_of_another_kind_are_refused(images: torch.Tensor) -> None:
    transform = Transform("none", 4, *HALF)
    for call in (transform.eval_batch, lambda x: transform.train_batch(x, torch.Generator())):
        with pytest.raises(DataError, match="expected uint8 of shape"):
            call(images)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("mixup", 4, *HALF), "augmentation: expected one of none, flip"),
        (("none", 0, *HALF), "output_size: expected at least 1"),
        (("none", 4, (0.5, 0.5, 0.5), (0.5, 0.0, 0.5)), "standard deviations above 0"),
        (("none", 4, (0.5,), (0.5,)), "three means"),
    ],
)
def test_settings_out_of_range_are_refused(arguments: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Transform(*arguments)
