"""Where only a head trains, features stand in for images, and nothing else changes."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import SIDE, FrozenModel, TinyDataset, tiny_model, tiny_transform

from fedsim.arrays import zeros_like
from fedsim.models.last_layer import features
from fedsim.training.batched_head import BatchedHeadTrainer
from fedsim.training.learner import FeatureCache, Learner, on_features_if_frozen
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer
from fedsim.update_sum import FoldRule

IN_MEMORY = FeatureCache(None, 10**6, lambda: None)
SETTINGS = LocalSettings(2, 4, 0.3, channels_last=True)


def frozen() -> FrozenModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FrozenModel(3)


def on_images(model: torch.nn.Module, dataset: TinyDataset | None = None) -> Learner:
    return Learner(model, dataset or TinyDataset(), tiny_transform(), channels_last=True)


def trainer(learner: Learner, kind: type[Trainer] = Trainer) -> Trainer:
    settings = dataclasses.replace(SETTINGS, channels_last=learner.channels_last)
    return kind(learner.model, learner.dataset, learner.transform, settings, seed=0)


def test_training_on_features_is_training_on_images() -> None:
    users = TinyDataset().table.ids
    images = trainer(on_images(frozen()))
    learner = on_features_if_frozen(on_images(frozen()), SIDE, IN_MEMORY)
    assert learner.on_features
    stored, batched = trainer(learner), trainer(learner, BatchedHeadTrainer)
    start = {name: tensor.detach().clone() for name, tensor in images.arrays.items()}
    assert list(start) == list(stored.arrays) == ["head.weight", "head.bias"]
    total = zeros_like(start)
    batched.train_block(users[3:4], 1, start, FoldRule("uniform"), total)
    results = [each.train(users[3], 1) for each in (images, stored)]
    assert results[0].train_loss == pytest.approx(results[1].train_loss, rel=1e-5)
    for name, parameter in images.arrays.items():
        tensor = parameter.detach()
        assert float((tensor - start[name]).abs().max()) > 1e-3
        torch.testing.assert_close(stored.arrays[name].detach(), tensor, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(start[name] + total[name], tensor, rtol=1e-5, atol=1e-6)
    numbers = [5, 0, 70, 2]
    scores = [each.logits("val", numbers) for each in (images, stored)]
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-6)


def test_what_stays_on_images() -> None:
    assert not on_features_if_frozen(on_images(tiny_model()), SIDE, IN_MEMORY).on_features
    flipped = dataclasses.replace(
        on_images(frozen()), transform=dataclasses.replace(tiny_transform(), augmentation="flip")
    )
    assert on_features_if_frozen(flipped, SIDE, IN_MEMORY) is flipped


class Watched(TinyDataset):
    """Counts the images that are read."""

    num_read = 0

    def load(self, split, indices):
        self.num_read += len(indices)
        return super().load(split, indices)


def test_a_second_run_reads_no_image(tmp_path: Path) -> None:
    """Of the same images and weights; other images or weights are computed anew."""

    def read(data: str = "these", change: float = 0.0) -> tuple[int, torch.Tensor]:
        model, dataset = frozen(), Watched()
        with torch.no_grad():
            model.body[0].bias[0] += change
        cache = FeatureCache(tmp_path, 0, lambda: data)
        learner = on_features_if_frozen(on_images(model, dataset), SIDE, cache)
        numbers = np.arange(40)
        found = learner.dataset.load("train", numbers).images
        inputs = tiny_transform().eval_batch(dataset.load("train", numbers).images)
        with torch.no_grad():
            torch.testing.assert_close(found, features(model, inputs), rtol=1e-5, atol=1e-6)
        return dataset.num_read - 40, found

    first, stored = read()
    assert first == 64  # two blocks
    again, found = read()
    assert again == 0
    assert torch.equal(stored, found)
    assert read(data="others")[0] == 64
    assert read(change=0.5)[0] == 64
    assert len(list(tmp_path.iterdir())) == 3
