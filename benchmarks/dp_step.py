r"""How long a step of example-level DP-SGD takes beside a plain step and beside Opacus's own loop.

    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=2147483647 \
        python benchmarks/dp_step.py --rounds 8

The three run interleaved in one thread, and each keeps its least CPU time: on a busy machine a step
of many milliseconds is never left alone, and the shorter one would win by that. Read the ratios,
not the milliseconds. The variables keep memory between steps, as fedsim's workers
do: without them returning and taking the per-example gradients of a ResNet costs up to half a step.
"""

import argparse
import time
import warnings
from collections.abc import Callable

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from fedsim.loss import label_mean_loss
from fedsim.models.cnn import Cnn
from fedsim.models.initialize import build_seeded
from fedsim.models.resnet import resnet18
from fedsim.privacy.per_sample import PrivateGradient, noise_of_stream
from fedsim.streams import torch_stream

LABELS = 17
LEARNING_RATE = 1e-6  # weights stay put, so that all steps do the same work
MAX_GRAD_NORM, NOISE_MULTIPLIER = 1.0, 1.0

Step = Callable[[], None]


def plain_step(model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> Step:
    parameters = list(model.parameters())

    def step() -> None:
        loss = label_mean_loss(model(images), targets).mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-LEARNING_RATE)

    return step


def fedsim_step(model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> Step:
    parameters = list(model.parameters())
    private = PrivateGradient(model, max_grad_norm=MAX_GRAD_NORM, noise_multiplier=NOISE_MULTIPLIER)
    gradient = private.for_user(noise_of_stream(torch_stream(0, "noise")), len(images))

    def step() -> None:
        _, gradients = gradient(images, targets)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-LEARNING_RATE)

    return step


def opacus_step(model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> Step:
    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=MAX_GRAD_NORM,
        expected_batch_size=len(images),
        generator=torch_stream(0, "noise"),
    )

    def step() -> None:
        optimizer.zero_grad()
        label_mean_loss(wrapped(images), targets).mean().backward()
        optimizer.step()

    return step


def fastest(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """Return each step's least CPU time in seconds, one unmeasured step first."""
    times = dict.fromkeys(steps, float("inf"))
    for round_num in range(rounds + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if round_num:
                times[name] = min(times[name], time.process_time() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=8, help="steps of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Opacus's own loop: its hooks are right although images need no gradient.
    warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
    cases: list[tuple[str, Callable[[], nn.Module], int, int, int]] = [
        ("Cnn 32px B=10", lambda: Cnn(LABELS), 32, 10, 10),
        ("ResNet-18 GroupNorm 64px B=16", lambda: resnet18(LABELS), 64, 16, 1),
    ]
    for title, factory, pixels, batch_size, repeats in cases:
        images = torch.randn(batch_size, 3, pixels, pixels, generator=torch_stream(0, "images"))
        targets = torch.randint(0, 2, (batch_size, LABELS), generator=torch_stream(0, "targets"))
        kinds = {"plain": plain_step, "fedsim": fedsim_step, "opacus": opacus_step}
        steps = {
            name: make(build_seeded(factory, 0), images, targets) for name, make in kinds.items()
        }
        times = fastest(steps, arguments.rounds * repeats)
        print(
            f"{title}: "
            + ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in times.items())
            + f"; private / plain {times['fedsim'] / times['plain']:.2f}"
            + f", opacus / private {times['opacus'] / times['fedsim']:.2f}"
        )


if __name__ == "__main__":
    main()
