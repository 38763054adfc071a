"""Arithmetic on named arrays: the parameters of a model, an update, a sum of updates."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

Arrays = dict[str, torch.Tensor]

_CHUNK = 256


def zeros_like(arrays: Arrays) -> Arrays:
    """Return contiguous zeros of the same names, shapes and dtypes."""
    return {
        name: torch.zeros_like(a, memory_format=torch.contiguous_format)
        for name, a in arrays.items()
    }


def l2_norm(tensors: Iterable[torch.Tensor]) -> float:
    """Return the L2 norm of all elements together, accurate to 5e-7 relative.

    A float32 sum over millions of squares loses three digits in one thread (11 million normal
    draws: 4e-4 too small, and a clipped update would be that much too long; even 4,096 equal
    elements: 2e-6), so squares are summed in float32 over 256 elements at most, and beyond in
    float64. NaN or inf where an element is; huge finite elements do not overflow.

    Examples:
        >>> l2_norm([torch.tensor([3.0]), torch.tensor(4.0)])
        5.0
        >>> l2_norm([])
        0.0
    """
    flats = [tensor.detach().reshape(-1) for tensor in tensors]
    norm = _chunked_norm(flats)
    if math.isinf(norm):  # float32 squares overflow from 1.8e19 on
        norm = math.sqrt(sum(float(flat.double().square().sum()) for flat in flats))
    return norm


def _chunked_norm(flats: list[torch.Tensor]) -> float:
    norms: list[torch.Tensor] = []
    rests: list[torch.Tensor] = []
    for flat in flats:
        whole = flat.numel() // _CHUNK * _CHUNK
        if whole:
            norms.append(torch.linalg.vector_norm(flat[:whole].view(-1, _CHUNK), dim=1))
        if whole < flat.numel():
            rests.append(flat[whole:])
    if rests:  # one call for all of them: a small model is nothing but rests
        norms.append(torch.stack(list(torch._foreach_norm(rests))))
    return float(torch.linalg.vector_norm(torch.cat(norms).double())) if norms else 0.0


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread, and restore the number after; also a decorator.

    Everything that trains, sums and scores does so: another number of threads gives other bits,
    and costs more than it saves where workers have the cores.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
