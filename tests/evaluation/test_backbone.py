"""Features of any model, and fine-tuning that leaves it as it was."""

import numpy as np
import pytest
import torch
from fakes import SIDE, TinyDataset, tiny_model, tiny_transform
from torch import nn

from fedsim.errors import ConfigError, EngineError
from fedsim.evaluation.backbone import FineTuning, eval_inputs, features_of
from fedsim.evaluation.episodes import Episode, EpisodeShape, draw_episodes
from fedsim.evaluation.few_shot import score_run
from fedsim.models.cnn import Cnn
from fedsim.models.last_layer import features
from fedsim.models.resnet import resnet18
from fedsim.training.local import laid_out


def test_features_are_what_the_last_layer_gets() -> None:
    images = torch.rand(3, 3, 32, 32)
    cnn, resnet = Cnn(4), resnet18(4).eval()
    pooled = cnn.pool(cnn.blocks(images)).flatten(1)
    assert torch.equal(features(cnn, images), pooled)
    assert torch.equal(resnet.fc(features(resnet, images)), resnet(images))
    assert not any(m._forward_pre_hooks for m in cnn.modules())


def test_the_last_layer_is_the_one_called_last() -> None:
    class Swapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(5, 2), nn.Linear(3, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.head(self.body(x).relu())
            return y

    model, x = Swapped(), torch.rand(4, 3)
    assert torch.equal(features(model, x), model.body(x).relu())


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Conv2d(3, 2, 1), "found none"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(3 * 2 * 2 * 2, 2)), "given shape"),
    ],
)
def test_models_without_a_last_linear_layer(model: nn.Module, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        features(model, torch.rand(2, 3, 2, 2))


def test_features_of_examples_do_not_depend_on_the_batch_size() -> None:
    dataset, model = TinyDataset(), tiny_model()
    inputs = eval_inputs(dataset, "test", tiny_transform(), channels_last=True)  # type: ignore[arg-type]
    numbers = np.array([5, 0, 7, 2, 9])
    found = features_of(model, inputs, numbers, 2)
    images = tiny_transform().eval_batch(dataset.load("test", numbers).images)
    with torch.no_grad():
        expected = model[:3](laid_out(images, True))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with pytest.raises(EngineError, match="finite features"):
        features_of(model, inputs, numbers, 2)


def spotted(num_classes: int, of_each: int) -> tuple[torch.Tensor, np.ndarray]:
    """Images whose class is where they are bright; rows of noise, so features must be learnt."""
    generator = torch.Generator().manual_seed(0)
    labels = np.tile(np.arange(num_classes), of_each)
    images = torch.randn(len(labels), 3, SIDE, SIDE, generator=generator)
    for row, label in enumerate(labels):
        images[row, :, label % SIDE, :] += 1.0
    return images, labels


def test_fine_tuning_learns_and_leaves_the_model_as_it_was() -> None:
    images, labels = spotted(3, 30)
    numbers = np.arange(len(labels))
    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = draw_episodes(labels, EpisodeShape(3, 8, 10), 10, seed=0)

    def accuracy(num_steps: int, seed: int = 0) -> float:
        learner = FineTuning(model, lambda n: images[n], num_steps=num_steps, learning_rate=0.05)
        return score_run(learner, numbers, drawn, seed=seed).accuracy

    learnt = accuracy(40)
    assert learnt > 0.7 > 0.5 > accuracy(1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert accuracy(40) == learnt
    assert len({accuracy(3, seed) for seed in range(4)}) > 1  # the head's weights are drawn


def test_fine_tuning_is_plain_sgd_on_all_layers() -> None:
    images, labels = spotted(2, 10)
    drawn = draw_episodes(labels, EpisodeShape(2, 4, 5), 1, seed=0)
    episode = drawn.episode(0, np.arange(len(labels)), 3)
    heads: list[torch.Tensor] = []

    class Spy(FineTuning):
        def _answers(self, episode: Episode, trained: list[nn.Parameter]) -> np.ndarray:
            answers = super()._answers(episode, trained)
            heads.extend(p.detach().clone() for p in trained)
            return answers

    model = tiny_model()
    spy = Spy(model, lambda n: images[n], num_steps=3, learning_rate=0.05)
    answers = spy(episode)

    from fedsim.streams import torch_stream

    twin = tiny_model().eval()
    weight = torch.randn(32, 2, generator=torch_stream(3, "few-shot head", 0)) / 32**0.5
    weight.requires_grad_()
    bias = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([*twin[:3].parameters(), weight, bias], lr=0.05, momentum=0.9)
    support = images[drawn.indices[0, :, :4].ravel()]
    for _ in range(3):
        optimizer.zero_grad()
        logits = twin[:3](support) @ weight + bias
        nn.functional.cross_entropy(logits, torch.tensor([0] * 4 + [1] * 4)).backward()
        optimizer.step()
    assert torch.allclose(heads[0], twin[0].weight, atol=1e-6)
    queries = images[drawn.indices[0, :, 4:].ravel()]
    expected = (twin[:3](queries) @ weight + bias).argmax(1).tolist()
    assert answers.tolist() == expected


def test_fine_tuning_that_diverges_is_named() -> None:
    images, labels = spotted(2, 10)
    model = tiny_model()
    before = model[0].weight.clone()
    drawn = draw_episodes(labels, EpisodeShape(2, 4, 5), 1, seed=0)
    learner = FineTuning(model, lambda n: images[n], num_steps=20, learning_rate=1e20)
    with pytest.raises(EngineError, match=r"fine_tuning\.learning_rate"):
        score_run(learner, np.arange(len(labels)), drawn)
    assert torch.equal(model[0].weight, before)
