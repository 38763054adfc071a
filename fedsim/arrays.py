"""Arithmetic on named arrays: the parameters of a model, an update, a sum of updates."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

Arrays = dict[str, torch.Tensor]

_RUN = 256  # elements whose squares are summed in float32
_SIDE_BY_SIDE = 2_000_000  # elements of all updates together
_CACHED = 131_072  # elements that stay in a core's cache between two operations


def zeros_like(arrays: Arrays, device: torch.device | None = None) -> Arrays:
    """Return contiguous zeros of the same names, shapes and dtypes; by default on their device."""
    return {
        name: torch.zeros_like(a, memory_format=torch.contiguous_format, device=device)
        for name, a in arrays.items()
    }


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether no element is NaN or infinite, in one pass and without another array.

    Examples:
        >>> is_finite(torch.tensor([1.0, 2.0])), is_finite(torch.tensor([1.0, math.nan]))
        (True, False)
    """
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return True
    return all(math.isfinite(bound) for bound in torch.aminmax(tensor.detach()))


def coordinate_runs(
    updates: list[Arrays],
) -> Iterator[tuple[str, slice, torch.Tensor]]:
    """Put updates side by side, some coordinates at a time.

    So that a median, say, is taken without another copy of all of them.

    Args:
        updates: Of the same names and shapes; at least one.

    Yields:
        An array's name, a run of its elements in flat order, and their values: shape (elements,
        updates), contiguous.
    """
    step = max(1, _SIDE_BY_SIDE // len(updates))
    for name in updates[0]:
        flats = [update[name].reshape(-1) for update in updates]
        for start in range(0, len(flats[0]), step):
            run = slice(start, start + step)
            yield name, run, torch.stack([flat[run] for flat in flats], dim=1)


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
    norm = _joined(_run_norms(flats))
    if math.isinf(norm):  # float32 squares overflow from 1.8e19 on
        norm = math.sqrt(sum(float(flat.double().square().sum()) for flat in flats))
    return norm


def squared_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return each row's sum of squares as ``l2_norm`` takes it, float64 of shape (n,).

    Args:
        rows: Shape (n, elements).

    Examples:
        >>> squared_norms(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([25.,  1.], dtype=torch.float64)
    """
    whole = rows.shape[1] // _RUN * _RUN
    runs = rows[:, :whole].reshape(len(rows), -1, _RUN)
    norms = torch.cat([torch.linalg.vector_norm(runs, dim=2), rows[:, whole:]], dim=1)
    return norms.double().square().sum(dim=1)


def add_difference(
    total: list[torch.Tensor], new: list[torch.Tensor], old: list[torch.Tensor], weight: float
) -> float:
    """Add ``weight * (new - old)`` to ``total`` in place; return the difference's norm.

    The same bits as a subtraction, ``l2_norm`` and a weighted addition, in one pass through memory
    for arrays that do not fit into the cache: these passes are what a client of a large model
    costs beside its training.

    Args:
        total: Contiguous, as are the others.
        new: Of the same shapes; not written to.
        old: Of the same shapes.
        weight: Of the difference.
    """
    norms: list[torch.Tensor] = []
    small = [i for i, tensor in enumerate(new) if tensor.numel() <= _CACHED]
    if small:
        differences = list(torch._foreach_sub([new[i] for i in small], [old[i] for i in small]))
        norms += _run_norms([difference.reshape(-1) for difference in differences])
        torch._foreach_add_([total[i] for i in small], differences, alpha=weight)
    buffer = new[0].new_empty(_CACHED)
    for into, after, before in zip(total, new, old, strict=True):
        if after.numel() <= _CACHED:
            continue
        flats = (tensor.detach().view(-1) for tensor in (into, after, before))
        parts = (torch.split(flat, _CACHED) for flat in flats)
        for into_part, after_part, before_part in zip(*parts, strict=True):
            difference = torch.sub(after_part, before_part, out=buffer[: len(after_part)])
            norms += _run_norms([difference])
            into_part.add_(difference, alpha=weight)
    norm = _joined(norms)
    if math.isinf(norm):
        norm = l2_norm(after - before for after, before in zip(new, old, strict=True))
    return norm


def add_clipped(
    total: list[torch.Tensor], update: list[torch.Tensor], bound: float, weight: float = 1.0
) -> float:
    """Add ``weight * update * min(1, bound / norm)`` to ``total`` in place; return the norm.

    Args:
        total: Of the update's shapes.
        update: Its L2 norm is that of all tensors together.
        bound: Above 0.
        weight: Of the clipped update.

    Examples:
        >>> total = [torch.zeros(2)]
        >>> add_clipped(total, [torch.tensor([3.0, 4.0])], bound=1.0), total
        (5.0, [tensor([0.6000, 0.8000])])
    """
    norm = l2_norm(update)
    scale = min(1.0, bound / norm) if norm else 1.0
    torch._foreach_add_(total, update, alpha=weight * scale)
    return norm


def _run_norms(flats: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the norms of runs of 256 elements at most, in tensors of any length."""
    norms: list[torch.Tensor] = []
    rests: list[torch.Tensor] = []
    for flat in flats:
        whole = flat.numel() // _RUN * _RUN
        if whole:
            norms.append(torch.linalg.vector_norm(flat[:whole].view(-1, _RUN), dim=1))
        if whole < flat.numel():
            rests.append(flat[whole:])
    if rests:  # one call for all of them: a small model has little else
        norms.append(torch.stack(list(torch._foreach_norm(rests))))
    return norms


def _joined(norms: list[torch.Tensor]) -> float:
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
