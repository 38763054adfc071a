"""Few-shot learners over features; each is a plain function, and any callable like them plugs in.

Ties go to the class, or the support image, that comes first.
"""

import numpy as np
import numpy.typing as npt
import torch

from fedsim.errors import ConfigError
from fedsim.evaluation.episodes import Episode, Inputs, Int64s
from fedsim.evaluation.few_shot import Learner
from fedsim.plugins import resolve

LEARNERS = {
    name: f"fedsim.evaluation.learners:{name}"
    for name in (
        "nearest_centroid",
        "nearest_centroid_cosine",
        "nearest_neighbor",
        "logistic_head",
        "constant",
    )
}
"""Short names, for ``find_learner``."""

_MOST_STEPS = 50
_CLOSE = 1e-10  # twice what a step can still gain, over the loss

_Float64s = npt.NDArray[np.float64]


def find_learner(name: str, where: str) -> Learner:
    """Return the learner that a name stands for, as ``fedsim.plugins.resolve`` reads it.

    Args:
        name: A key of ``LEARNERS``, ``package.module:function`` or ``./file.py:function``.
        where: The setting, for errors.

    Raises:
        ConfigError: Nothing has this name, or it can't be called.
    """
    learner: Learner = resolve(name, LEARNERS, where)
    if not callable(learner):
        raise ConfigError(
            f"{where}: expected something to call, found {name}, a {type(learner).__name__}; name "
            "a function"
        )
    return learner


def nearest_centroid(episode: Episode) -> Int64s:
    """Name the class whose support has the nearest mean, in Euclidean distance.

    References:
        Snell et al., Prototypical networks for few-shot learning, NeurIPS 2017.
    """
    return _nearest(_rows(episode.queries), _centroids(episode))


def nearest_centroid_cosine(episode: Episode) -> Int64s:
    """Name the class whose support mean has the largest cosine with the query; 0 for zeros."""
    queries, centroids = _normalized(_rows(episode.queries)), _normalized(_centroids(episode))
    answers: Int64s = (queries @ centroids.T).argmax(axis=1)
    return answers


def nearest_neighbor(episode: Episode) -> Int64s:
    """Name the class of the nearest support image, in Euclidean distance."""
    nearest = _nearest(_rows(episode.queries), _rows(episode.support))
    return episode.support_classes[nearest]


def logistic_head(episode: Episode) -> Int64s:
    """Fit multinomial logistic regression to the support, and name the likeliest class.

    The weights minimize the summed cross-entropy plus half their squared norm; the intercepts are
    free. The minimum is unique, so nothing is drawn. Weights of that minimum lie in the span of
    the support, so they are sought there: as many numbers as support images, not as features.
    """
    support = torch.from_numpy(_rows(episode.support))
    queries = torch.from_numpy(_rows(episode.queries))
    left, lengths, basis = torch.linalg.svd(support, full_matrices=False)
    ones = torch.ones(len(support), 1, dtype=torch.float64)
    classes = torch.from_numpy(episode.support_classes)
    weights = _fitted(torch.cat([left * lengths, ones], dim=1), classes, episode.num_ways)
    logits = queries @ basis.T @ weights[:-1] + weights[-1]
    answers: Int64s = logits.argmax(dim=1).numpy()
    return answers


def constant(episode: Episode) -> Int64s:
    """Name the first class, always: what chance gives, exactly 1 in ``num_ways``."""
    return np.zeros(len(episode.queries), dtype=np.int64)


def _rows(inputs: Inputs) -> _Float64s:
    rows: _Float64s = inputs.reshape(len(inputs), -1).astype(np.float64)
    return rows


def _centroids(episode: Episode) -> _Float64s:
    support = _rows(episode.support)
    classes = range(episode.num_ways)
    return np.stack([support[episode.support_classes == way].mean(axis=0) for way in classes])


def _nearest(queries: _Float64s, places: _Float64s) -> Int64s:
    # By differences, not by products, whose rounding would decide near ties of large features.
    distances = [((queries - place) ** 2).sum(axis=1) for place in places]
    nearest: Int64s = np.stack(distances).argmin(axis=0)
    return nearest


def _normalized(rows: _Float64s) -> _Float64s:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    normalized: _Float64s = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return normalized


def _fitted(inputs: torch.Tensor, classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Return the weights, shape (columns, classes), by Newton's method.

    Args:
        inputs: Shape (images, columns); the last column is that of the intercepts.
        classes: Shape (images,).
        num_classes: How many there are.
    """
    columns = inputs.shape[1]
    truth = torch.eye(num_classes, dtype=torch.float64)[classes]
    penalty = torch.ones(columns, 1, dtype=torch.float64)
    penalty[-1] = 0.0
    curvature = torch.diag(penalty.repeat(1, num_classes).flatten())
    # Intercepts are known up to what is added to all of them: their sum is held at 0.
    curvature[-num_classes:, -num_classes:] += 1.0
    products = (inputs[:, :, None] * inputs[:, None, :]).flatten(1)
    weights = torch.zeros(columns, num_classes, dtype=torch.float64)
    loss, shares = _loss(weights, inputs, truth, penalty)
    for _ in range(_MOST_STEPS):
        gradient = inputs.T @ (shares - truth) + penalty * weights
        spread = torch.diag_embed(shares) - shares[:, :, None] * shares[:, None, :]
        # The sum over images of (x x') (diag(p) - p p'), a block for each pair of columns.
        blocks = (products.T @ spread.flatten(1)).view(columns, columns, num_classes, num_classes)
        hessian = blocks.transpose(1, 2).reshape(curvature.shape) + curvature
        step = torch.linalg.solve(hessian, gradient.flatten()).view(weights.shape)
        if float((step * gradient).sum()) < _CLOSE * (1 + loss):
            break
        size = 1.0
        now, shares = _loss(weights - step, inputs, truth, penalty)
        while now > loss and size > _CLOSE:
            size /= 2
            now, shares = _loss(weights - size * step, inputs, truth, penalty)
        weights, loss = weights - size * step, now
    return weights


def _loss(
    weights: torch.Tensor, inputs: torch.Tensor, truth: torch.Tensor, penalty: torch.Tensor
) -> tuple[float, torch.Tensor]:
    """Return the loss and the probabilities of the classes, shape (images, classes)."""
    logs = torch.log_softmax(inputs @ weights, dim=1)
    loss = 0.5 * (penalty * weights**2).sum() - (logs * truth).sum()
    return float(loss), logs.exp()
