"""Example-level DP-SGD: per-example gradients, clipped, summed and noised (Abadi et al. 2016)."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import is_parametrized

from fedsim.errors import EngineError, PrivacyError
from fedsim.loss import label_mean_loss
from fedsim.privacy.layer_gradients import LayerGradients
from fedsim.secret import Secret

ExampleLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From logits (n, labels) and targets (n, labels) to one loss per example, shape (n,)."""

Noise = Callable[[torch.Tensor, float], torch.Tensor]
"""From a gradient and a standard deviation to noise of its shape; every call draws anew."""

_GRADIENT_ELEMENTS = 2**28  # of per-example gradients that are in memory at a time: 1 GiB


@dataclass(frozen=True)
class ClippedSum:
    """What ``clipped_gradient_sum`` returns.

    Attributes:
        gradients: The sum over examples of the clipped gradients: contiguous tensors, one per
            trainable parameter in the order of ``model.parameters()``.
        loss: The summed loss, a scalar. It is not private.
        num_clipped: Examples whose gradient was longer than the bound. It is not private.
    """

    gradients: list[torch.Tensor]
    loss: torch.Tensor
    num_clipped: int


class PerSampleGradients:
    """Per-example gradients of a model, with hooks that are attached once and serve all users.

    The model is not wrapped: its parameters keep their names, and it can be trained and scored as
    before. Layers are those that Opacus has rules for, and by way of ``torch.func`` any other
    without buffers; nothing may work in place.

    Args:
        model: Its trainable parameters may change, but not which ones are trainable.
        example_loss: One loss per example.

    Raises:
        PrivacyError: If the model mixes examples (batch normalization), updates statistics, works
            in place, or has hooks already.

    Examples:
        >>> model = nn.Linear(2, 1)
        >>> hooks = PerSampleGradients(model)
        >>> clipped = hooks.clipped_gradient_sum(
        ...     torch.ones(3, 2), torch.zeros(3, 1), max_grad_norm=0.1
        ... )
        >>> clipped.num_clipped, [tuple(g.shape) for g in clipped.gradients]
        (3, [(1, 2), (1,)])
    """

    def __init__(self, model: nn.Module, example_loss: ExampleLoss = label_mean_loss) -> None:
        from fedsim.privacy.gradient_hooks import DirectHooks

        _check_model(model)
        self._model = model
        self._example_loss = example_loss
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._hooks = DirectHooks(model)

    def clipped_gradient_sum(
        self, images: torch.Tensor, targets: torch.Tensor, *, max_grad_norm: float
    ) -> ClippedSum:
        """Return Σ_i g_i · min(1, max_grad_norm / ‖g_i‖) over the examples of a batch.

        ``g_i`` is the gradient of example i's loss with respect to all trainable parameters
        together; a parameter that the loss does not depend on has gradient 0. The norm of a
        clipped gradient exceeds the bound by at most 1e-6 of it.

        Args:
            images: Float inputs of shape (n, ...); n may be 0, and the sum is then 0.
            targets: Shape (n, labels).
            max_grad_norm: Above 0.

        Raises:
            PrivacyError: If a parameter is used twice, something works in place, a layer is not
                given an example in each row, or the loss is not one number per example.
            EngineError: If an example's gradient is not finite.
        """
        if not max_grad_norm > 0:
            raise PrivacyError(
                f"max_grad_norm: expected a number above 0, found {max_grad_norm}; correct it"
            )
        num_examples = len(images)
        if num_examples == 0:
            zeros = [_contiguous_zeros(p) for p in self._parameters]
            return ClippedSum(zeros, torch.zeros((), device=images.device), 0)
        loss, layers = self._per_example(images, targets)
        norms = self._norms(layers, num_examples)
        if not bool(torch.isfinite(norms).all()):
            bad = torch.nonzero(~torch.isfinite(norms)).flatten().tolist()
            raise EngineError(
                f"example-level DP-SGD: expected finite gradients, found none for the examples "
                f"{bad[:5]} of a batch of {num_examples}; lower the learning rate, or check the "
                "data"
            )
        factors = torch.clamp(max_grad_norm / norms.clamp(min=1e-300), max=1.0)
        sums = {p: total for layer in layers for p, total in layer.weighted_sums(factors).items()}
        total = [sums[p] if p in sums else _contiguous_zeros(p) for p in self._parameters]
        return ClippedSum(total, loss, int((norms > max_grad_norm).sum()))

    def close(self) -> None:
        """Take all hooks off the model and everything that was put on its parameters."""
        self._hooks.forget()
        self._hooks.cleanup()

    def _norms(self, layers: list[LayerGradients], num_examples: int) -> torch.Tensor:
        """Return the norms over all parameters, float64 of shape (n,)."""
        squares = [layer.squared_norms() for layer in layers]
        for found in map(len, squares):
            if found != num_examples:  # each row would be clipped to the bound, not each example
                raise PrivacyError(
                    f"model {type(self._model).__name__}: expected layers that are given an "
                    f"example in each row, found one that is given {found} rows for "
                    f"{num_examples} examples; keep examples in the first dimension"
                )
        return torch.stack(squares).sum(dim=0).sqrt()

    def _per_example(
        self, images: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, list[LayerGradients]]:
        """Return the summed loss, and what the layers that it depends on give."""
        hooks = self._hooks
        hooks.forget()
        hooks.enable_hooks()
        try:
            with torch.enable_grad():
                losses = self._example_loss(self._model(images), targets)
                if losses.shape != (len(images),):
                    raise PrivacyError(
                        f"example_loss: expected one loss per example, shape ({len(images)},), "
                        f"found shape {tuple(losses.shape)}; leave out the reduction over examples"
                    )
                loss = losses.sum()
            torch.autograd.backward(loss, inputs=hooks.leaves)
            return loss.detach(), hooks.layers
        except RuntimeError as error:
            if "BackwardHookFunction" not in str(error):
                raise
            raise PrivacyError(
                f"model {type(self._model).__name__}: expected layers whose output is not changed "
                "in place, found an in-place operation after one of them; write x = x + y for "
                "x += y"
            ) from error
        finally:
            hooks.disable_hooks()
            hooks.forget()


class PrivateGradient:
    """The gradient that a step of example-level DP-SGD takes, for one user after another.

    A step releases (Σ clipped gradients + noise) / (n q), with noise of standard deviation
    noise_multiplier · max_grad_norm on every coordinate and n q the **expected** batch size. An
    empty batch is a step of noise alone.

    Args:
        model: As for ``PerSampleGradients``.
        max_grad_norm: L2 bound of one example's gradient, above 0.
        noise_multiplier: σ, at least 0; at 0 nothing is drawn.
        example_loss: One loss per example.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_grad_norm: float,
        noise_multiplier: float,
        example_loss: ExampleLoss = label_mean_loss,
    ) -> None:
        self._per_sample = PerSampleGradients(model, example_loss)
        self._max_grad_norm = max_grad_norm
        self._noise_multiplier = noise_multiplier
        size = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self._examples_at_once = max(1, _GRADIENT_ELEMENTS // size)

    def for_user(
        self, noise: Noise, expected_batch_size: float
    ) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, list[torch.Tensor]]]:
        """Return a function from images and targets to the summed loss and the noised mean.

        Args:
            noise: Makes the noise of all of the user's steps.
            expected_batch_size: n q, above 0.
        """

        def gradient(
            images: torch.Tensor, targets: torch.Tensor
        ) -> tuple[torch.Tensor, list[torch.Tensor]]:
            loss, total = self._clipped_sum(images, targets)
            mean = noisy_mean(
                total,
                noise_multiplier=self._noise_multiplier,
                max_grad_norm=self._max_grad_norm,
                expected_batch_size=expected_batch_size,
                noise=noise,
            )
            return loss, mean

        return gradient

    def _clipped_sum(
        self, images: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Sum over parts of the batch: its per-example gradients may not fit into memory."""
        size = self._examples_at_once
        parts = zip(torch.split(images, size), torch.split(targets, size), strict=True)
        sums = (
            self._per_sample.clipped_gradient_sum(*part, max_grad_norm=self._max_grad_norm)
            for part in parts
        )
        first = next(sums)
        loss, total = first.loss, first.gradients
        for other in sums:
            loss = loss + other.loss
            torch._foreach_add_(total, other.gradients)
        return loss, total


def noise_of_stream(generator: torch.Generator) -> Noise:
    """Return noise that follows from a generator's state: whoever knows that can take it off."""

    def noise(gradient: torch.Tensor, stddev: float) -> torch.Tensor:
        # Contiguous whatever the gradient's layout: into channels_last it would take 8 times as
        # long, and be other noise.
        drawn = torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device)
        return drawn.normal_(0.0, stddev, generator=generator)

    return noise


def noise_of_nobody() -> Noise:
    """Return noise that nobody can make again: its key is drawn here and kept nowhere else."""
    secret, calls = Secret.new(), itertools.count()
    return lambda gradient, stddev: secret.noise(gradient, stddev, "example-level", next(calls))


def noisy_mean(
    total: list[torch.Tensor],
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    expected_batch_size: float,
    noise: Noise,
) -> list[torch.Tensor]:
    """Add noise to a clipped sum and divide by the expected batch size, both in place.

    Args:
        total: A sum of clipped gradients.
        noise_multiplier: σ, at least 0; at 0 nothing is drawn.
        max_grad_norm: Sensitivity of the sum when one example is added or removed.
        expected_batch_size: n q: a number that does not depend on the batch, above 0.
        noise: Makes the noise, in the order of ``total``.

    Returns:
        ``total``.

    Raises:
        PrivacyError: If a number is out of its range.

    Examples:
        >>> noisy_mean(
        ...     [torch.tensor([3.0])], noise_multiplier=0.0, max_grad_norm=1.0,
        ...     expected_batch_size=1.5, noise=noise_of_stream(torch.Generator()),
        ... )
        [tensor([2.])]
    """
    stddev = noise_multiplier * max_grad_norm
    if not (math.isfinite(stddev) and stddev >= 0 and expected_batch_size > 0):
        raise PrivacyError(
            f"noisy mean: expected a finite noise of at least 0 and an expected batch size above "
            f"0, found {stddev} and {expected_batch_size}; correct the settings"
        )
    for tensor in total:
        if stddev > 0:
            tensor.add_(noise(tensor, stddev))
        tensor.div_(expected_batch_size)
    return total


def _contiguous_zeros(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter, memory_format=torch.contiguous_format).detach()


def _computes_a_weight(module: nn.Module) -> bool:
    """Tell whether trained parameters are not used themselves, as in weight normalization."""
    if is_parametrized(module):
        computed_from = module.get_submodule("parametrizations").parameters()
        return any(p.requires_grad for p in computed_from)
    # torch.nn.utils.weight_norm leaves weight_g and weight_v, spectral_norm weight_orig, and a
    # tensor in the weight's place.
    return any(
        p.requires_grad and isinstance(vars(module).get(name.rpartition("_")[0]), torch.Tensor)
        for name, p in module.named_parameters(recurse=False)
    )


def _check_model(model: nn.Module) -> None:
    from fedsim.privacy.gradient_hooks import has_rule

    where = f"model {type(model).__name__}"
    if not any(p.requires_grad for p in model.parameters()):
        raise PrivacyError(
            f"{where}: expected at least one trainable parameter, found none; leave requires_grad "
            "on for what should be trained"
        )
    if hasattr(model, "autograd_grad_sample_hooks"):
        raise PrivacyError(
            f"{where}: expected a model without per-example gradient hooks, found some; use those, "
            "or close them first"
        )
    for name, module in model.named_modules():
        own = any(p.requires_grad for p in module.parameters(recurse=False))
        if isinstance(module, _BatchNorm) or (
            isinstance(module, _InstanceNorm) and module.track_running_stats
        ):
            fault = "mixes examples or keeps statistics of them; use nn.GroupNorm"
        elif getattr(module, "inplace", False):
            fault = "works in place; set inplace=False"
        elif _computes_a_weight(module):
            fault = (
                "computes a weight from other parameters, which its gradients would not reach; "
                "leave weight or spectral normalization out"
            )
        elif own and not has_rule(module) and any(True for _ in module.buffers(recurse=False)):
            fault = (
                "has buffers, which may mix examples; register a rule for it with "
                "opacus.grad_sample.register_grad_sampler if they don't"
            )
        else:
            continue
        raise PrivacyError(
            f"{where}: expected layers that treat each example by itself, found {name or 'itself'} "
            f"({type(module).__name__}), which {fault}"
        )
