"""A model's last linear layer: what it is given, and the layer alone where nothing else trains."""

import hashlib

import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.models.initialize import running_statistics
from fedsim.models.placed import device_of
from fedsim.streams import global_torch_stream, torch_stream


class Head(nn.Module):
    """A model's last linear layer alone, under the names that its parameters have in the model.

    Args:
        name: Of the layer in the model, with dots.
        linear: The layer; it is shared, not copied.

    Examples:
        >>> head = Head("classifier.1", nn.Linear(2, 3))
        >>> [name for name, _ in head.named_parameters()]
        ['classifier.1.weight', 'classifier.1.bias']
    """

    def __init__(self, name: str, linear: nn.Linear) -> None:
        super().__init__()
        *path, last = name.split(".")
        place: nn.Module = self
        for part in path:
            place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.add_module(last, linear)
        self._name = name

    @property
    def linear(self) -> nn.Linear:
        """The layer."""
        layer: nn.Linear = self.get_submodule(self._name)  # type: ignore[assignment]
        return layer

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (n, labels) for features of shape (n, features)."""
        logits: torch.Tensor = self.linear(given)
        return logits


def features(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Return what a model's last linear layer is given, shape (n, features).

    The last one is the ``nn.Linear`` that is called last in a forward pass, wherever it stands in
    the model. Gradients flow, unless they are switched off.

    Args:
        model: Any.
        inputs: The model's, shape (n, ...).

    Raises:
        ConfigError: No ``nn.Linear`` is called, or it is given something else than a row per input.

    Examples:
        >>> model = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(2, 7))
        >>> features(model, torch.tensor([[-1.0, 2.0]]))
        tensor([[0., 2.]])
    """
    calls, _ = _calls_of_linear(model, inputs)
    given = calls[-1][1] if calls else None
    if given is None or given.shape[:1] != inputs.shape[:1]:
        found = "none" if given is None else f"one that is given shape {tuple(given.shape)}"
        raise ConfigError(
            f"evaluation.few_shot: expected a model {type(model).__name__} whose last layer is an "
            f"nn.Linear with a row per image, found {found}; leave evaluation.few_shot out"
        )
    return given.flatten(1)


@torch.no_grad()
def frozen_head(model: nn.Module, inputs: torch.Tensor) -> Head | None:
    """Return a model's last linear layer if that is all that trains, else None.

    The model is tried on some inputs, in training and in evaluation mode and with other random
    numbers: all that comes before the layer must be frozen and give the same features each time,
    row by row, and the layer's outputs must be the model's. Then training on features is training
    on images.

    Args:
        model: Any; it is left in the mode that it was in.
        inputs: At least two, shape (n, ...).
    """
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    all_of_it = len(trained) == sum(1 for _ in model.parameters())
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and trained == {f"{name}.{own}" for own, _ in module.named_parameters()}
    ]
    if len(found) != 1 or all_of_it or running_statistics(model):
        return None
    name, linear = found[0]
    was_training = model.training
    try:
        tries = []
        for training, draws in ((True, 0), (True, 1), (False, 2)):
            model.train(training)
            with global_torch_stream(draws, "frozen head"):
                tries.append(_calls_of_linear(model, inputs))
        model.eval()
        beside_itself, _ = _calls_of_linear(model, inputs[:1].expand_as(inputs))
    finally:
        model.train(was_training)
    if any(not calls or calls[-1][0] != name for calls, _ in tries):
        return None
    given = [calls[-1][1] for calls, _ in tries]
    fits = (
        given[0].dim() == 2
        and all(torch.equal(given[0], other) for other in given[1:])
        and all(
            torch.equal(outputs, linear(given[0].to(linear.weight.dtype))) for _, outputs in tries
        )
        and torch.allclose(beside_itself[-1][1][0], given[0][0], rtol=1e-3, atol=1e-4)
    )
    return Head(name, linear) if fits else None


@torch.no_grad()
def backbone_sha256(model: nn.Module, head: Head, inputs_shape: tuple[int, ...]) -> str:
    """Return a hash of all that features depend on but the images: weights, code and machine.

    It is over every tensor of the model's state but the head's, and over what the model makes of
    seeded noise, which other code or another processor would change.

    Args:
        model: In evaluation mode afterwards.
        head: The model's.
        inputs_shape: Of the noise.
    """
    digest = hashlib.sha256(repr(torch.__version__).encode())
    own = {name for name, _ in head.named_parameters()}
    for name, tensor in model.state_dict().items():
        if name not in own:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
    noise = torch.randn(inputs_shape, generator=torch_stream(0, "backbone hash"))
    model.eval()
    made = features(model, noise.to(device_of(model))).float()
    digest.update(made.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def _calls_of_linear(
    model: nn.Module, inputs: torch.Tensor
) -> tuple[list[tuple[str, torch.Tensor]], torch.Tensor]:
    """Return what each ``nn.Linear`` was given in a forward pass, in order, and the output."""
    calls: list[tuple[str, torch.Tensor]] = []

    def noting(name: str) -> "torch.utils.hooks.RemovableHandle":
        def note(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
            if arguments:
                calls.append((name, arguments[0]))

        return model.get_submodule(name).register_forward_pre_hook(note)

    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    hooks = [noting(name) for name in linears]
    try:
        outputs = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return calls, outputs
