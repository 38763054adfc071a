"""One local step of one user, computed in the ways that might be faster.

    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=2147483647 python benchmarks/step.py

For the CNN of the pfl-research benchmark, fedsim's Cnn and ResNet-18: the plain step that fedsim
takes; the same with ``model.precision: bfloat16``; compiled by ``torch.compile`` for the one batch
size, and for any; and the steps of eight users batched by ``torch.func.vmap``. Prints
milliseconds per user and step, one thread, minima, and their ratios to the plain step: CPU time,
or time on the clock with ``--device cuda``. Compiling needs a C++ compiler and takes minutes. The
variables keep memory between steps, as fedsim does.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedsim.loss import label_mean_loss
from fedsim.models.cnn import Cnn
from fedsim.models.initialize import build_seeded
from fedsim.models.placed import Precision, placed
from fedsim.models.resnet import resnet18
from fedsim.streams import torch_stream
from fedsim.training.step import mean_gradient

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from model import make_model

LEARNING_RATE = 1e-6  # weights stay put, so that all steps do the same work

Step = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A model and what it is given."""

    title: str
    make: Callable[[], nn.Module]
    side: int
    batch_size: int
    labels: int
    device: str = "cpu"
    users: int = 8

    def model(self, precision: Precision = "float32") -> nn.Module:
        return placed(build_seeded(self.make, 0), self.device, precision)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (self.batch_size, 3, self.side, self.side)
        images = torch.randn(shape, generator=torch_stream(0, "images")).to(self.device)
        targets = torch.zeros(self.batch_size, self.labels, device=self.device)
        targets[:, 0] = 1
        return images.contiguous(memory_format=torch.channels_last), targets


CASES = {
    "benchmark": Case("pfl's CNN, 32 px, B=10", make_model, 32, 10, 10),
    "cnn": Case("Cnn, 32 px, B=16", lambda: Cnn(17), 32, 16, 17),
    "cnn-few": Case("Cnn, 32 px, B=2", lambda: Cnn(17), 32, 2, 17),
    "resnet18": Case("ResNet-18, 64 px, B=16", lambda: resnet18(17), 64, 16, 17),
}


@torch.no_grad()
def update(parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
    torch._foreach_add_(parameters, gradients, alpha=-LEARNING_RATE)


def plain(case: Case) -> Step:
    return _eager(case, case.model())


def bfloat16(case: Case) -> Step:
    return _eager(case, case.model("bfloat16"))


def _eager(case: Case, model: nn.Module) -> Step:
    parameters: list[torch.Tensor] = list(model.parameters())
    gradient, batch = mean_gradient(model), case.batch()
    return lambda: update(parameters, gradient(*batch)[1])


def functional_gradient(model: nn.Module) -> Callable[..., dict[str, torch.Tensor]]:
    """Return the same gradient as a function of parameters by name, images and targets."""

    def loss(given: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return label_mean_loss(functional_call(model, given, (x,)), y).mean()

    return grad(loss)


def compiled(case: Case, *, any_size: bool = False) -> Step:
    model, batch = case.model().to(memory_format=torch.channels_last), case.batch()  # its best
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradient = torch.compile(functional_gradient(model), dynamic=any_size)
    return lambda: update(list(parameters.values()), list(gradient(parameters, *batch).values()))


def batched(case: Case) -> Step:
    """Return one step of several users at once."""
    model, (images, targets) = case.model(), case.batch()
    stacked = {
        name: parameter.detach().expand(case.users, *parameter.shape).clone()
        for name, parameter in model.named_parameters()
    }
    gradient = vmap(functional_gradient(model), randomness="different")
    of_all = [of_one.expand(case.users, *of_one.shape).clone() for of_one in (images, targets)]
    return lambda: update(list(stacked.values()), list(gradient(stacked, *of_all).values()))


KINDS = {
    "plain": plain,
    "bfloat16": bfloat16,
    "compiled": compiled,
    "compiled for any size": partial(compiled, any_size=True),
    "users batched": batched,
}


def milliseconds(step: Step, seconds: float, device: str) -> float:
    """Return the least time of a step, tried for so long after three unmeasured ones."""
    on_cpu = device == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    for _ in range(3):
        step()
    least, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = clock()
        step()
        if not on_cpu:
            torch.accelerator.synchronize()
        least = min(least, clock() - start)
    return 1e3 * least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring for each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--users", type=int, default=8, help="that are batched")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kinds = arguments.kinds
    time_of = "CPU ms" if arguments.device == "cpu" else "ms"
    print(f"| {time_of} per user and step | " + " | ".join(kinds) + " |")
    print("|---" * (len(kinds) + 1) + "|")
    for case in map(CASES.__getitem__, arguments.cases):
        case = replace(case, device=arguments.device, users=arguments.users)
        base, cells = milliseconds(plain(case), arguments.seconds, case.device), []
        for kind in kinds:
            found = milliseconds(KINDS[kind](case), arguments.seconds, case.device)
            found /= case.users if kind == "users batched" else 1
            cells.append(f"{found:.2f} ({found / base:.2f})")
            print(f"{case.title}, {kind}: {cells[-1]}", file=sys.stderr)
        print(f"| {case.title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
