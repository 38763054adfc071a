"""The loss of multi-label classification."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits


def label_mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return each example's binary cross-entropy with logits, the mean over its labels.

    Args:
        logits: Shape (n, labels).
        targets: The same shape, 0 or 1, of any dtype.

    Returns:
        Shape (n,).

    Examples:
        >>> label_mean_loss(torch.zeros(1, 2), torch.tensor([[0, 1]]))
        tensor([0.6931])
    """
    losses = binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return losses.mean(dim=1)
