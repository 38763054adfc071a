"""Opacus's hooks without its buffers: the one place that rests on Opacus's internals.

Importing this file imports Opacus, which takes a second.
"""

from collections.abc import Sequence
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import nn

from fedsim.errors import PrivacyError
from fedsim.privacy.layer_gradients import ByParameter, LayerGradients, layer_gradients


class DirectHooks(GradSampleHooks):  # type: ignore[misc]  # opacus is untyped
    """Keeps per-example gradients as each layer gives them, by Opacus's rule or without one.

    Opacus itself copies them into a buffer of zeros first, to add up what several uses of one
    parameter contribute; here such a parameter is refused, and an eighth of a step is saved.

    Hooks do nothing unless ``hooks_enabled``. While they are, the inputs of the first trainable
    layers are made leaves of the graph and listed in ``leaves``: ``loss.backward(inputs=leaves)``
    then runs all backward hooks but computes no gradient of the weights, and nothing at all for
    frozen layers in front.

    Args:
        model: Gets hooks at its trainable layers. It is not wrapped, so names stay.
    """

    def __init__(self, model: nn.Module) -> None:
        # strict would refuse every trainable layer with buffers; the caller has checked them.
        super().__init__(model, loss_reduction="sum", strict=False)
        self.disable_hooks()
        self.layers: list[LayerGradients] = []
        self.leaves: list[torch.Tensor] = []
        self._activations: dict[nn.Module, list[torch.Tensor]] = {}
        self._seen: set[nn.Parameter] = set()
        self._names = {p: name for name, p in model.named_parameters()}
        self._input_hooks = [
            module.register_forward_pre_hook(self._make_leaf)
            for module in self.iterate_submodules(model)
        ]

    def forget(self) -> None:
        """Drop all gradients, activations and leaves, also those of a pass that failed."""
        self.layers = []
        self.leaves = []
        self._activations = {}
        self._seen = set()

    def remove_hooks(self) -> None:
        """Take all hooks off the model."""
        super().remove_hooks()
        while self._input_hooks:
            self._input_hooks.pop().remove()

    def _make_leaf(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not self.hooks_enabled or not isinstance(inputs[0], torch.Tensor):
            return None
        if inputs[0].requires_grad or not inputs[0].is_floating_point():
            return None
        leaf = inputs[0].detach().requires_grad_()
        self.leaves.append(leaf)
        return (leaf, *inputs[1:])

    def capture_activations_hook(
        self, module: nn.Module, forward_input: Sequence[torch.Tensor], _forward_output: Any
    ) -> None:
        """Keep the layer's input; refuse a parameter that was used before in this pass."""
        if not self.hooks_enabled:
            return
        for parameter in module.parameters():
            if not parameter.requires_grad:
                continue
            if parameter in self._seen:
                raise PrivacyError(
                    f"model: expected every parameter to be used once in a forward pass, found "
                    f"{self._names[parameter]} used twice, and its per-example gradients would not "
                    "be added up; give each use its own parameter"
                )
            self._seen.add(parameter)
        self._activations[module] = [_precise(tensor, module) for tensor in forward_input]

    def capture_backprops_hook(
        self,
        module: nn.Module,
        _grad_input: Any,
        grad_output: Sequence[torch.Tensor],
        loss_reduction: str,
        batch_first: bool,
    ) -> None:
        """Keep what the layer gives."""
        if not self.hooks_enabled:
            return
        activations = self._activations.pop(module)
        backprops = _precise(grad_output[0], module)

        def rule() -> ByParameter:
            rule_of_layer = self.GRAD_SAMPLERS.get(type(module), ft_compute_per_sample_gradient)
            # Opacus unfolds a convolution's input by strides that it takes to be contiguous: with
            # channels_last it returns wrong gradients and says nothing.
            contiguous = [tensor.contiguous() for tensor in activations]
            found: ByParameter = rule_of_layer(module, contiguous, backprops)
            return found

        self.layers += layer_gradients(module, activations[0], backprops, rule)


def _precise(tensor: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """Return a tensor with its layer's dtype: under autocast it has another, too coarse to sum."""
    dtype = next(module.parameters()).dtype
    return tensor.detach().to(dtype) if tensor.is_floating_point() else tensor.detach()


def has_rule(module: nn.Module) -> bool:
    """Tell whether a rule for per-example gradients is registered for exactly this layer's type."""
    return type(module) in GradSampleHooks.GRAD_SAMPLERS
