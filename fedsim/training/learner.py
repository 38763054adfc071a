"""What is trained, and on what: a model on images, or its last layer alone on stored features."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedsim.arrays import one_thread
from fedsim.data.dataset import Examples, FederatedDataset, UserTable, num_examples
from fedsim.data.feature_store import (
    BLOCK,
    FeatureStore,
    FileBlocks,
    Float32s,
    MemoryBlocks,
    Room,
    num_stored_blocks,
)
from fedsim.data.transforms import InputTransform
from fedsim.models.last_layer import Head, backbone_sha256, features, frozen_head
from fedsim.models.placed import device_of
from fedsim.training.local import laid_out


@dataclass(frozen=True)
class Learner:
    """A model with the data that it is given.

    Attributes:
        model: The whole one, or a ``Head``.
        dataset: Its examples' ``images`` are uint8 images, or float32 features of shape (n,
            features).
        transform: From these to the model's inputs.
        channels_last: How inputs lie in memory; False for features.
    """

    model: nn.Module
    dataset: FederatedDataset
    transform: InputTransform
    channels_last: bool

    @property
    def on_features(self) -> bool:
        """Whether the model is a last layer, given stored features."""
        return isinstance(self.model, Head)


@dataclass(frozen=True)
class FeatureCache:
    """Where features are kept.

    Attributes:
        folder: Of files that processes and runs share; None for this process's memory.
        max_bytes: Of features in memory, over all splits.
        data: Names the images, their order and their transform; None if nothing does, and then
            features stay in memory. Asked only where features are used: it hashes an index.
    """

    folder: Path | None
    max_bytes: int
    data: Callable[[], str | None]


def on_features_if_frozen(images: Learner, side: int, cache: FeatureCache) -> Learner:
    """Return the last layer on stored features, if nothing else trains and no input is random.

    This is the only place that chooses between images and features.

    Args:
        images: The model on images.
        side: Of the model's inputs, in pixels.
        cache: Where features are kept.
    """
    if images.transform.is_random:
        return images
    shape = (2, 3, side, side)
    with one_thread():
        noise = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        noise = noise.to(device_of(images.model))
        head = frozen_head(images.model, laid_out(noise, images.channels_last))
        if head is None:
            return images
        key = None
        if cache.folder is not None and (data := cache.data()) is not None:
            made_by = f"{backbone_sha256(images.model, head, shape)} {images.channels_last}"
            key = hashlib.sha256(f"{data} {made_by}".encode()).hexdigest()[:32]
    return Learner(head, FeatureDataset(images, head, cache, key), FeaturesAsInputs(), False)


class FeaturesAsInputs:
    """Gives features to a last layer as they are."""

    is_random = False

    def train_batch(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return the features."""
        return images

    def eval_batch(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        return images


class FeatureDataset:
    """A data set whose images are replaced by their features, each computed once.

    Args:
        images: The model on images.
        head: Its last layer.
        cache: Where features are kept.
        key: Names what they depend on, in a file's name; None for memory.

    Attributes:
        num_features: Of an image.
        shared_as: Names the features that processes and runs share; None for a process's own.
    """

    def __init__(self, images: Learner, head: Head, cache: FeatureCache, key: str | None) -> None:
        self._images, self.num_features = images, head.linear.in_features
        self._folder, self.shared_as = cache.folder, key
        self._room = Room(cache.max_bytes)
        self._stores: dict[str, FeatureStore] = {}

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the columns of the labels."""
        return self._images.dataset.label_names

    def users(self, split: str) -> UserTable:
        """Return the users of a split."""
        return self._images.dataset.users(split)

    def labels(self, split: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return labels, as the images' data set does."""
        return self._images.dataset.labels(split, indices)

    def load(self, split: str, indices: npt.NDArray[np.int64]) -> Examples:
        """Return features and labels of some examples.

        Raises:
            IndexError: A number is not one of the split's.
            EngineError: Features can't be kept.
        """
        found = self._store(split).read(np.asarray(indices, dtype=np.int64))
        labels = self._images.dataset.labels(split, indices).view(np.uint8)
        return Examples(torch.from_numpy(found), torch.from_numpy(labels))

    def num_missing(self, split: str) -> int:
        """Return how many images' features are in no file yet."""
        path, shape = self._path(split), self._shape(split)
        num_stored = BLOCK * num_stored_blocks(path, shape) if path else 0
        return max(0, shape[0] - num_stored)

    def _store(self, split: str) -> FeatureStore:
        if split not in self._stores:
            path, shape = self._path(split), self._shape(split)
            blocks = FileBlocks(path, shape) if path else MemoryBlocks(shape, self._room)
            self._stores[split] = FeatureStore(blocks, partial(self.compute, split))
        return self._stores[split]

    def _shape(self, split: str) -> tuple[int, int]:
        return num_examples(self._images.dataset, split), self.num_features

    def _path(self, split: str) -> Path | None:
        if self.shared_as is None or self._folder is None:
            return None
        return self._folder / f"{self.shared_as}-{split}.features"

    @one_thread()
    @torch.no_grad()
    def compute(self, split: str, numbers: npt.NDArray[np.int64]) -> Float32s:
        """Compute the features of some images, without keeping them."""
        images = self._images
        images.model.eval()
        read = images.dataset.load(split, numbers).images.to(device_of(images.model))
        inputs = images.transform.eval_batch(read)
        given = features(images.model, laid_out(inputs, images.channels_last))
        found: Float32s = given.float().cpu().numpy()
        return found
