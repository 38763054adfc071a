"""What a strategy hands over is checked, and what it raises bears its name."""

import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from fedsim.arrays import Arrays, is_finite
from fedsim.errors import EngineError, FedsimError


def named_faults(strategy: str, round_num: int) -> AbstractContextManager[None]:
    """Turn what a strategy raises into an EngineError that names it, with the traceback."""
    return raised_by(f"strategy {strategy}, round {round_num}")


@contextmanager
def raised_by(where: str) -> Iterator[None]:
    """Turn what somebody's code raises into an EngineError, with the traceback."""
    try:
        yield
    except FedsimError:
        raise
    except Exception as error:
        raise EngineError(
            f"{where}: failed with {type(error).__name__}: {error}; "
            f"check its parameters, or mend it\n{traceback.format_exc()}"
        ) from error


def check_aggregate(arrays: Arrays, expected: Arrays, strategy: str, round_num: int) -> None:
    """Raise EngineError unless a strategy returned the model's arrays, finite.

    Args:
        arrays: What it returned.
        expected: The arrays of the round before.
        strategy: Its name, for the message.
        round_num: For the message.
    """
    where = f"strategy {strategy}, round {round_num}"
    check_named_tensors(arrays, where)
    if arrays.keys() != expected.keys():
        names = sorted(arrays.keys() ^ expected.keys())[:3]
        raise EngineError(
            f"{where}: expected the model's arrays, found a difference in {names}; return every "
            "array under its own name"
        )
    for name, tensor in arrays.items():
        if tensor.shape != expected[name].shape:
            raise EngineError(
                f"{where}: expected {name!r} of shape {tuple(expected[name].shape)}, found "
                f"{tuple(tensor.shape)}; return it with the model's shape"
            )
        if not is_finite(tensor):
            raise EngineError(
                f"{where}: expected finite numbers, found NaN or infinity in {name!r}; lower the "
                "learning rates, or the noise"
            )


def check_named_tensors(arrays: object, where: str) -> None:
    """Raise EngineError for anything but a dict of tensors, which a strategy returns."""
    found = type(arrays).__name__
    if isinstance(arrays, dict):
        other = [k for k, value in arrays.items() if not isinstance(value, torch.Tensor)]
        if not other:
            return
        found = f"{type(arrays[other[0]]).__name__} for {other[0]!r}"
    raise EngineError(
        f"{where}: expected a dict of tensors, found {found}; return every array under its own name"
    )


def check_beside(
    beside: Arrays, model: Arrays, shapes_before: dict[str, torch.Size] | None, where: str
) -> None:
    """Raise EngineError for arrays that can't travel beside the model.

    Args:
        beside: What the strategy wants to send along.
        model: The global arrays.
        shapes_before: Of what it sent along before, by name; None in the first round.
        where: Strategy and round.
    """
    where = f"{where}: sent_along"
    check_named_tensors(beside, where)
    clash = sorted(beside.keys() & model.keys())
    if clash:
        raise EngineError(
            f"{where}: expected names that the model lacks, found {clash[:3]}; put a prefix before "
            "them"
        )
    dtype = next(iter(model.values())).dtype
    for name, tensor in beside.items():
        if tensor.dtype != dtype:
            raise EngineError(
                f"{where}: expected {name!r} in the model's {dtype}, found {tensor.dtype}; cast it"
            )
        if not is_finite(tensor):
            raise EngineError(
                f"{where}: expected finite numbers, found NaN or infinity in {name!r}; lower the "
                "learning rates"
            )
    shapes = {name: tensor.shape for name, tensor in beside.items()}
    if shapes_before is not None and shapes != shapes_before:
        changed = sorted(dict(shapes.items() ^ shapes_before.items()))[:3]
        raise EngineError(
            f"{where}: expected the same names and shapes in every round, found other ones for "
            f"{changed}; send zeros for what is not known yet"
        )


def check_state(state: Any, where: str, path: str = "") -> None:
    """Raise EngineError for NaN or infinity in a state's tensors: it would be there for good."""
    if isinstance(state, torch.Tensor) and not is_finite(state):
        raise EngineError(
            f"{where}: expected a state of finite numbers, found NaN or infinity in {path!r}, "
            "which would stay for good; lower the learning rates, or set "
            "federated.local.max_grad_norm"
        )
    inner = state.items() if isinstance(state, dict) else ()
    if isinstance(state, list | tuple):
        inner = enumerate(state)  # type: ignore[assignment]
    for key, value in inner:
        check_state(value, where, f"{path}.{key}".lstrip("."))
