"""Local training against torch's own optimizer and against closed forms."""

import math

import pytest
import torch
from fakes import SIDE, TinyDataset, tiny_model, tiny_trainer, tiny_transform
from torch import nn

from fedsim.data.dataset import Examples
from fedsim.data.transforms import Transform
from fedsim.loss import label_mean_loss
from fedsim.privacy.per_sample import PrivateGradient, noise_of_stream
from fedsim.streams import torch_stream
from fedsim.training.local import LocalSettings, train_locally
from fedsim.training.step import Sgd, mean_gradient


def random_examples(num: int) -> Examples:
    generator = torch_stream(num, "examples")
    images = torch.randint(0, 256, (num, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 2, (num, 3), generator=generator, dtype=torch.uint8)
    return Examples(images, labels)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_is_torchs(momentum: float, weight_decay: float) -> None:
    ours, theirs = tiny_model(), tiny_model()
    reference = torch.optim.SGD(
        theirs.parameters(), lr=0.3, momentum=momentum, weight_decay=weight_decay, foreach=True
    )
    optimizer = Sgd(0.3, momentum, weight_decay)
    gradient = mean_gradient(ours)
    for step in range(5):
        batch = random_examples(4 + step)
        inputs = tiny_transform().eval_batch(batch.images)
        _, gradients = gradient(inputs, batch.labels)
        optimizer.step(list(ours.parameters()), gradients)
        reference.zero_grad()
        label_mean_loss(theirs(inputs), batch.labels).mean().backward()
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_long_gradient_is_scaled_to_the_bound() -> None:
    parameters = [torch.zeros(2), torch.zeros(1)]
    Sgd(1.0, max_grad_norm=1.0).step(parameters, [torch.tensor([3.0, 0.0]), torch.tensor([4.0])])
    torch.testing.assert_close(torch.cat(parameters), torch.tensor([-0.6, 0.0, -0.8]))
    parameters = [torch.zeros(1)]
    Sgd(1.0, max_grad_norm=1.0).step(parameters, [torch.tensor([0.5])])
    assert parameters[0].item() == -0.5


def test_each_array_may_be_scaled_by_itself() -> None:
    """As torch clips one parameter at a time."""
    gradients = [torch.tensor([[3.0, 4.0]]), torch.tensor([0.5]), torch.tensor(-2.0)]
    theirs = [torch.zeros_like(g) for g in gradients]
    for parameter, gradient in zip(theirs, gradients, strict=True):
        parameter.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_(parameter, 1.0)
    ours = [torch.zeros_like(g) for g in gradients]
    Sgd(1.0, max_grad_norm=1.0, clip_each_array=True).step(ours, gradients)
    for parameter, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(parameter, -reference.grad)


def test_the_settings_reach_the_step() -> None:
    examples = random_examples(8)
    bound = {"epochs": 1, "batch_size": 8, "learning_rate": 1.0, "max_grad_norm": 1e-3}
    start = list(tiny_model().parameters())
    for each, arrays in ((False, 1), (True, len(start))):
        trained, _ = run(LocalSettings(**bound, clip_each_array=each), examples)
        steps = [a - b for a, b in zip(trained.parameters(), start, strict=True)]
        norm = float(torch.cat([step.detach().flatten() for step in steps]).norm())
        assert norm == pytest.approx(1e-3 * arrays**0.5, rel=1e-3)


def run(settings: LocalSettings, examples: Examples, gradient=None) -> tuple[nn.Module, object]:
    model = tiny_model()
    result = train_locally(
        list(model.parameters()),
        (gradient or mean_gradient)(model),
        examples,
        tiny_transform(),
        settings,
        torch_stream(0, "batches"),
    )
    return model, result


@pytest.mark.parametrize("num", [1, 4, 5, 9])
def test_every_example_is_used_once_an_epoch_and_none_dropped(num: int) -> None:
    seen: list[torch.Tensor] = []
    sizes: list[int] = []

    def watching(model: nn.Module):
        def gradient(inputs, labels):
            seen.append(inputs)
            sizes.append(len(inputs))
            return torch.zeros(()), [torch.zeros_like(p) for p in model.parameters()]

        return gradient

    _, result = run(LocalSettings(2, 4, 0.1), random_examples(num), watching)
    assert result.num_examples == num
    assert sizes == 2 * ([4] * (num // 4) + ([num % 4] if num % 4 else []))
    once = tiny_transform().eval_batch(random_examples(num).images)
    for epoch in (seen[: len(seen) // 2], seen[len(seen) // 2 :]):
        assert torch.equal(torch.cat(epoch).sum(0), once.sum(0)) or torch.allclose(
            torch.cat(epoch).sum(0), once.sum(0), atol=1e-5
        )


@pytest.mark.parametrize("poisson", [False, True])
def test_a_user_of_many_images_has_inputs_made_by_the_batch_and_the_same_bits(
    poisson: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    eval_batch = Transform.eval_batch

    def watched(self: Transform, images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        return eval_batch(self, images)

    monkeypatch.setattr(Transform, "eval_batch", watched)
    settings, examples = LocalSettings(2, 4, 0.1, poisson=poisson), random_examples(10)

    def gradient(model: nn.Module):
        private = PrivateGradient(model, max_grad_norm=1.0, noise_multiplier=0.0)
        return private.for_user(noise_of_stream(torch.Generator()), 4.0)

    one, _ = run(settings, examples, gradient)
    assert sizes == [10]
    sizes.clear()
    monkeypatch.setattr("fedsim.training.local._INPUTS_KEPT", 9)
    other, _ = run(settings, examples, gradient)
    assert len(sizes) == 6
    assert max(sizes) < 10
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_poisson_batches_have_the_rate_and_the_steps_that_the_ledger_supposes() -> None:
    sizes: list[int] = []

    def watching(model: nn.Module):
        def gradient(inputs, labels):
            sizes.append(len(inputs))
            return torch.zeros(()), [torch.zeros_like(p) for p in model.parameters()]

        return gradient

    settings = LocalSettings(500, 4, 0.1, poisson=True)
    run(settings, random_examples(10), watching)
    assert len(sizes) == 500 * math.ceil(10 / 4)
    mean = sum(sizes) / len(sizes)
    assert mean == pytest.approx(4, abs=4 * math.sqrt(10 * 0.4 * 0.6 / len(sizes)))
    assert 0 in sizes
    sizes.clear()
    run(settings, random_examples(3), watching)  # fewer than a batch: everybody, every time
    assert set(sizes) == {3}


def test_without_noise_and_clipping_a_private_step_is_a_plain_one() -> None:
    """On the same Poisson batches, whose plain mean is over the expected size."""
    settings = LocalSettings(3, 4, 0.1, poisson=True)
    examples = random_examples(10)

    def private(model: nn.Module):
        made = PrivateGradient(model, max_grad_norm=1e9, noise_multiplier=0.0)
        return made.for_user(noise_of_stream(torch_stream(0, "noise")), 4.0)

    def plain(model: nn.Module):
        mean = mean_gradient(model)

        def gradient(inputs, labels):
            if len(inputs) == 0:
                return torch.zeros(()), [torch.zeros_like(p) for p in model.parameters()]
            loss, gradients = mean(inputs, labels)
            return loss, [g * (len(inputs) / 4.0) for g in gradients]

        return gradient

    (a, ra), (b, rb) = run(settings, examples, private), run(settings, examples, plain)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    assert ra.train_loss == pytest.approx(rb.train_loss, rel=1e-5)


def test_training_is_a_function_of_seed_round_and_user() -> None:
    def trained(user: str, round_num: int) -> torch.Tensor:
        trainer = tiny_trainer()
        trainer.train(user, round_num)
        return trainer.arrays["0.weight"].detach().clone()

    users = TinyDataset().table.ids
    again = torch.equal(trained(users[3], 1), trained(users[3], 1))
    assert again
    assert not torch.equal(trained(users[3], 1), trained(users[3], 2))
    before = torch.random.get_rng_state()
    trained(users[3], 1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_dropout_draws_from_the_user_s_stream() -> None:
    from fedsim.training.trainer import Trainer

    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * SIDE * SIDE, 3))
    settings = LocalSettings(1, 4, 0.1)
    start = [p.detach().clone() for p in model.parameters()]
    trained = []
    for draws in (0, 7):
        torch.rand(draws)  # whatever else the process draws
        for p, s in zip(model.parameters(), start, strict=True):
            p.data.copy_(s)
        trainer = Trainer(model, TinyDataset(), tiny_transform(), settings, seed=0)
        trainer.train("user00003", 1)
        trained.append(trainer.arrays["2.weight"].detach().clone())
    assert torch.equal(*trained)


def test_gradients_that_autograd_shares_are_separated() -> None:
    """Of a + b both have one gradient tensor: scaled in place, it would be scaled twice."""

    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
            self.frozen_out = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.a + self.b) * x

    model = Added()
    inputs, labels = torch.full((4, 3), 10.0), torch.zeros(4, 3)
    _, gradients = mean_gradient(model)(inputs, labels)
    assert len({g.data_ptr() for g in gradients}) == 3
    before = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    assert before > 1
    Sgd(1.0, max_grad_norm=1.0).step(list(model.parameters()), gradients)
    moved = torch.cat([model.a.detach(), model.b.detach()])
    assert float(moved.norm()) == pytest.approx(1.0, rel=1e-5)
    assert model.frozen_out.tolist() == [1, 1]
