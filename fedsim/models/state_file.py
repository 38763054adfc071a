"""Weights from a file: read without running anything, and loaded whole but for a last layer."""

from pathlib import Path

import torch
from torch import nn

from fedsim.errors import ConfigError

State = dict[str, torch.Tensor]


def read_state(path: Path, model: str, instead: str) -> State:
    """Read a state dict that was saved with ``torch.save``.

    Args:
        path: Of the file.
        model: Whose weights they are, for errors.
        instead: What ``weights`` may be instead of a file, for errors.

    Raises:
        ConfigError: The file can't be read, or holds something else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    # A file that is no state dict fails in as many ways as there are files.
    except Exception as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else type(error).__name__
        raise ConfigError(
            f"{model}: expected weights to be {instead} or a state dict saved with torch.save, "
            f"found {path} ({reason}); check the path"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise ConfigError(
            f"{model}: expected {path} to hold a dict of names to tensors, found "
            f"{type(state).__name__}; save model.state_dict() alone"
        )
    return dict(state)


def load_but_for_head(module: nn.Module, state: State, head: str, misfit: str) -> None:
    """Load a state dict in place, all of it but a last layer of another size.

    Args:
        module: What is loaded into; its last layer stays as it is where the state has none, or
            one for another number of labels.
        state: Names to tensors.
        head: Name of the last layer.
        misfit: Whose weights they are, where from and of what, for errors: "expected ... to hold".

    Raises:
        ConfigError: The state is of another model.
    """
    own, weight = module.state_dict(), f"{head}.weight"
    if weight not in state or state[weight].shape != own[weight].shape:
        state = state | {name: own[name] for name in own if name.startswith(f"{head}.")}
    # Counts of batches are unused, and files of old releases of torch lack them.
    counts = {name: own[name] for name in own if name.endswith("num_batches_tracked")}
    state = counts | state
    misfits = sorted(
        name
        for name in own.keys() | state.keys()
        if name not in own or name not in state or own[name].shape != state[name].shape
    )
    if misfits:
        raise ConfigError(
            f"{misfit}, found {len(misfits)} tensors that are missing, unknown or of another "
            f"shape, such as {misfits[0]}; use another file, or the model that this one is of"
        )
    module.load_state_dict(state)
