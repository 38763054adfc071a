"""From uint8 images to a model's inputs, with the augmentations of FLAIR's reference protocols."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch

from fedsim.errors import ConfigError, DataError

Augmentation = Literal["none", "flip", "random_crop", "random_resized_crop"]

_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_ATTEMPTS = 10


class InputTransform(Protocol):
    """From what a data set loads to what a model is given."""

    @property
    def is_random(self) -> bool:
        """Whether training inputs are drawn anew each time."""
        ...

    def train_batch(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return inputs to train on."""
        ...

    def eval_batch(self, images: torch.Tensor) -> torch.Tensor:
        """Return inputs to score."""
        ...


@dataclass(frozen=True)
class Transform:
    """How images of shape (n, 3, height, width) become inputs of shape (n, 3, S, S).

    Images stay uint8 until the end. Then ``(image / 255 - mean) / std``, as one multiply-add, makes
    float32 inputs that lie channels-last in memory, also for a single image.

    Attributes:
        augmentation: What training does to each image by itself, before the normalization.
            ``none``: resize. ``flip``: resize, then mirror left to right with probability 1/2.
            ``random_crop``: cut out S x S pixels at a uniform position, then mirror left to right
            and upside down, each with probability 1/2 (the TensorFlow code of Song, Granqvist and
            Talwar 2022). ``random_resized_crop``: cut out a box of a uniform 8 to 100 % of the area
            and a log-uniform aspect ratio of 3/4 to 4/3, resize it, then mirror left to right with
            probability 1/2 (the PyTorch code of Granqvist et al. 2024; Szegedy et al. 2015).
        output_size: S, the side of the inputs in pixels. To resize is to stretch to S x S with
            bilinear, antialiased interpolation; images of that size are left alone.
        mean: Of each channel of ``image / 255``.
        std: Of each channel of ``image / 255``; above 0.

    Raises:
        ConfigError: An attribute is out of its range.

    Examples:
        >>> half = Transform("none", 2, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        >>> half.eval_batch(torch.zeros(1, 3, 2, 2, dtype=torch.uint8)).unique().tolist()
        [-1.0]
    """

    augmentation: Augmentation
    output_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if self.augmentation not in get_args(Augmentation):
            raise ConfigError(
                f"augmentation: expected one of {', '.join(get_args(Augmentation))}, found "
                f"{self.augmentation!r}; use one of them"
            )
        if self.output_size < 1:
            raise ConfigError(
                f"output_size: expected at least 1 pixel, found {self.output_size}; raise it"
            )
        if len(self.mean) != 3 or len(self.std) != 3 or not all(s > 0 for s in self.std):
            raise ConfigError(
                "normalization: expected three means and three standard deviations above 0, found "
                f"{self.mean} and {self.std}; change them"
            )

    @property
    def is_random(self) -> bool:
        """Whether training inputs are drawn anew each time; if not, they may be made once."""
        return self.augmentation != "none"

    def train_batch(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Augment and normalize.

        Args:
            images: uint8, shape (n, 3, height, width); n may be 0.
            generator: On the CPU, wherever the images are. All draws come from it.

        Returns:
            float32, shape (n, 3, S, S), channels-last.

        Raises:
            DataError: Images of another type or shape, or smaller than a crop from them.
        """
        _check_images(images)
        match self.augmentation:
            case "none":
                images = self._resized(images)
            case "flip":
                images = _mirrored(self._resized(images), -1, generator)
            case "random_crop":
                images = self._cut(images, self._crop_boxes(images, generator))
                images = _mirrored(_mirrored(images, -1, generator), -2, generator)
            case "random_resized_crop":
                boxes = [random_box(images.shape[-2], images.shape[-1], generator) for _ in images]
                images = self._cut(images, boxes)
                images = _mirrored(images, -1, generator)
        return self.normalize(images)

    def eval_batch(self, images: torch.Tensor) -> torch.Tensor:
        """Resize and normalize; shapes, types and errors as for ``train_batch``."""
        _check_images(images)
        return self.normalize(self._resized(images))

    def normalize(self, images: torch.Tensor) -> torch.Tensor:
        """Return ``(images / 255 - mean) / std`` as float32, channels-last, at any size."""
        scale = [1 / (255 * std) for std in self.std]
        shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        factor, term = torch.tensor([scale, shift], device=images.device).view(2, 3, 1, 1)
        inputs = images.to(torch.float32, memory_format=torch.channels_last)
        return torch.addcmul(term, inputs, factor, out=inputs)

    def _resized(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape[-2:] == (self.output_size, self.output_size):
            return images
        from torchvision.transforms.v2.functional import resize

        resized: torch.Tensor = resize(images, [self.output_size, self.output_size])
        return resized

    def _crop_boxes(
        self, images: torch.Tensor, generator: torch.Generator
    ) -> list[tuple[int, int, int, int]]:
        size, (height, width) = self.output_size, images.shape[-2:]
        if min(height, width) < size:
            raise DataError(
                f"augmentation: expected images of at least {size}x{size} pixels to crop from, "
                f"found {height}x{width}; load larger images or lower the input size"
            )
        tops = torch.randint(height - size + 1, (len(images),), generator=generator)
        lefts = torch.randint(width - size + 1, (len(images),), generator=generator)
        corners = zip(tops.tolist(), lefts.tolist(), strict=True)
        return [(top, left, size, size) for top, left in corners]

    def _cut(self, images: torch.Tensor, boxes: list[tuple[int, int, int, int]]) -> torch.Tensor:
        """Cut a box (top, left, height, width) out of each image and resize it."""
        from torchvision.transforms.v2.functional import resized_crop

        size = (self.output_size, self.output_size)
        cuts = torch.empty(
            (len(images), 3, *size),
            dtype=torch.uint8,
            device=images.device,
            memory_format=torch.channels_last,
        )
        for cut, image, box in zip(cuts, images, boxes, strict=True):
            cut.copy_(resized_crop(image, *box, size))
        return cuts


def random_box(height: int, width: int, generator: torch.Generator) -> tuple[int, int, int, int]:
    """Draw a box of 8 to 100 % of an image's area and an aspect ratio of 3/4 to 4/3.

    Area and logarithm of the aspect ratio are uniform, sides are rounded, and the position is
    uniform. A box that does not fit is drawn again; after ten times it is the largest central box
    with an aspect ratio in the range. Same rule and same draws as torchvision's RandomResizedCrop.

    Args:
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        generator: Where the draws come from.

    Returns:
        Top, left, height and width of the box.

    Examples:
        >>> random_box(256, 256, torch.Generator().manual_seed(0))
        (54, 24, 174, 203)
    """
    low, high = (math.log(ratio) for ratio in _ASPECT)
    for _ in range(_ATTEMPTS):
        area = height * width * torch.empty(1).uniform_(*_AREA, generator=generator).item()
        aspect = torch.empty(1).uniform_(low, high, generator=generator).exp().item()
        box_width, box_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(torch.randint(height - box_height + 1, (1,), generator=generator))
            left = int(torch.randint(width - box_width + 1, (1,), generator=generator))
            return top, left, box_height, box_width
    box_width = min(width, round(height * _ASPECT[1]))
    box_height = min(height, round(width / _ASPECT[0]))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _mirrored(images: torch.Tensor, dim: int, generator: torch.Generator) -> torch.Tensor:
    """Mirror each image along a dimension with probability 1/2."""
    chosen = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(chosen.to(images.device).view(-1, 1, 1, 1), images.flip(dim), images)


def _check_images(images: torch.Tensor) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
        raise DataError(
            f"images: expected uint8 of shape (n, 3, height, width), found {images.dtype} of shape "
            f"{tuple(images.shape)}; let the data set return images as it found them"
        )
