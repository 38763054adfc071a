"""How far local steps carry: what FedNova divides by, and SCAFFOLD's option II."""


def effective_steps(num_steps: int, momentum: float) -> float:
    """Return the sum of the weights with which the steps' gradients enter the update.

    Without momentum, ``num_steps``. With it the gradient of the step that is j steps before the
    end (j from 1) enters with ``1 + momentum + ... + momentum^(j - 1)``; the sum over tau steps is

        (tau - momentum (1 - momentum^tau) / (1 - momentum)) / (1 - momentum)

    (Wang et al. 2020, arXiv:2007.07481, section 4: the norm ``|a|_1`` for momentum SGD).

    Args:
        num_steps: At least 1.
        momentum: Of local SGD, in [0, 1).

    Examples:
        >>> effective_steps(3, 0.0), effective_steps(3, 0.5)
        (3.0, 4.25)
    """
    decayed = momentum * (1 - momentum**num_steps) / (1 - momentum)
    return (num_steps - decayed) / (1 - momentum)
