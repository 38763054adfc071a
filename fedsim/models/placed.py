"""A model on the device, and in the precision, that it computes with."""

from typing import Literal

import torch
from torch import nn

from fedsim.errors import ConfigError, first_line

Precision = Literal["float32", "bfloat16"]


def placed(model: nn.Module, device: str, precision: Precision = "float32") -> nn.Module:
    """Move a model to a device, and let it compute in a precision; returns the same model.

    Its parameters stay float32, and so do its outputs. Under ``bfloat16`` torch's autocast chooses
    which operations compute with 8 bits of mantissa: convolutions and matrix products do.

    Args:
        model: Its tensors are moved in place.
        device: As torch names it: ``cpu``, ``cuda``, ``cuda:1``.
        precision: Of the forward pass, and so of gradients.

    Raises:
        ConfigError: torch knows no such device here.
    """
    try:
        model.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:  # AssertionError: a build without CUDA
        reason = first_line(error) or type(error).__name__
        raise ConfigError(
            f"model.device: expected a device that torch can use here, found {device!r} ({reason});"
            " set it to cpu, or install a torch that fits the machine's GPU and driver"
        ) from error
    if precision == "bfloat16":
        forward = torch.autocast(torch.device(device).type, torch.bfloat16)(model.forward)
        # On the instance, so that names in the state dict stay as they are.
        model.forward = lambda *inputs: forward(*inputs).float()
    return model


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's parameters are; the CPU if it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
