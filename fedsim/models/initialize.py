"""The initial model: weights that follow from the seed, and which tensors a round exchanges."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.streams import global_torch_stream

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_TRACKING_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


def build_seeded(factory: Callable[[], ModuleT], seed: int) -> ModuleT:
    """Return ``factory()`` with weights that depend on ``seed`` and on nothing else.

    The constructors of torch's modules draw from the global generator. For the length of the call
    that generator is the stream (seed, "model weights"); after it, also after an error, it is in
    the state that it was in before.

    Args:
        factory: Builds the model on the CPU. Draws from other global generators (NumPy's, a
            GPU's) are not seeded.
        seed: The run's seed.

    Examples:
        >>> a, b = (build_seeded(lambda: nn.Linear(2, 2), seed=1) for _ in range(2))
        >>> torch.equal(a.weight, b.weight)
        True
    """
    with global_torch_stream(seed, "model weights"):
        return factory()


def running_statistics(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the float buffers that training would change.

    These are the running means and variances of torch's batch and instance norms that track them,
    in the order of ``model.named_modules()``. Frozen statistics and counts of batches are not
    among them, and neither are buffers of modules that are not torch's.

    Examples:
        >>> running_statistics(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        ('1.running_mean', '1.running_var')
        >>> running_statistics(nn.GroupNorm(1, 2))
        ()
    """
    return tuple(
        f"{name}.{buffer}" if name else buffer
        for name, module in model.named_modules()
        if isinstance(module, _TRACKING_NORMS) and module.running_mean is not None
        for buffer in ("running_mean", "running_var")
    )


def exchanged_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that a round sends and gets back, by name.

    Trainable parameters come first, in the order of ``model.named_parameters()``, then the
    running statistics. The tensors are the model's own, not copies: writing into them changes the
    model. Everything else, say a frozen backbone, is the same on all sides and stays where it is.

    Raises:
        ConfigError: No parameter is trainable, or the tensors are not all of one float type.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        >>> _ = model[0].requires_grad_(False)
        >>> list(exchanged_tensors(model))
        ['1.weight', '1.bias']
    """
    tensors: dict[str, torch.Tensor] = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if not tensors:
        raise ConfigError(
            f"model {type(model).__name__}: expected at least one trainable parameter, found none; "
            "leave requires_grad on for what should be trained"
        )
    buffers = dict(model.named_buffers())
    tensors |= {name: buffers[name] for name in running_statistics(model)}
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor.dtype != first.dtype or not tensor.is_floating_point():
            raise ConfigError(
                f"model {type(model).__name__}: expected tensors of one float type, found "
                f"{first.dtype} in {first_name} and {tensor.dtype} in {name}; convert the model "
                "with .float()"
            )
    return tensors
