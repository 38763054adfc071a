"""Peer without a framework: the same steps in a plain PyTorch loop, in one process."""

import argparse
import time
from pathlib import Path

import data
import numpy as np
import torch
from model import flat_copy, loss_function, make_model, to_tensors
from protocol import Channel
from workload import BATCH_SIZE, COHORT_SIZE, LEARNING_RATE, NUM_USERS, SEED

LAYOUTS = {"nchw": torch.contiguous_format, "channels-last": torch.channels_last}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    channel = Channel()
    torch.set_num_threads(args.threads)
    images, labels = data.load(args.data)
    layout = LAYOUTS[args.layout]
    model = make_model().to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    parameters = list(model.parameters())
    rng = np.random.default_rng(SEED)

    def train(user: int) -> None:
        x, y = to_tensors(images[user], labels[user])
        x = x.contiguous(memory_format=layout)
        for start in range(0, len(x), BATCH_SIZE):
            optimizer.zero_grad()
            batch = slice(start, start + BATCH_SIZE)
            loss_function(model(x[batch]), y[batch]).backward()
            optimizer.step()

    @torch.no_grad()
    def run_round() -> None:
        received = [parameter.clone() for parameter in parameters]
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for user in rng.choice(NUM_USERS, COHORT_SIZE, replace=False):
            with torch.enable_grad():
                train(user)
            for parameter, before, summed in zip(parameters, received, total, strict=True):
                summed += parameter
                parameter.copy_(before)
        for parameter, summed in zip(parameters, total, strict=True):
            parameter.copy_(summed.div_(COHORT_SIZE))

    channel.ready(torch=torch.__version__, layout=args.layout, threads=args.threads)
    while channel.wait():
        before = flat_copy(model)
        start = time.perf_counter()
        run_round()
        seconds = time.perf_counter() - start
        channel.report(seconds, (flat_copy(model) - before).norm().item())


if __name__ == "__main__":
    main()
