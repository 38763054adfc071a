"""Few-shot episodes: which classes and images are drawn, and what a learner sees of them.

An episode draws a few classes (its ways), and of each some labelled images (its shots, the support)
and some others (its queries).
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError, DataError
from fedsim.streams import numpy_stream

Int64s = npt.NDArray[np.int64]
Inputs = npt.NDArray[Any]
EpisodeSeed = Literal["fixed", "per_run"]

_NAMED = 5


@dataclass(frozen=True)
class EpisodeShape:
    """How large an episode is.

    Attributes:
        num_ways: Classes of an episode, at least 2.
        num_shots: Images of each class that the learner sees with their class, at least 1.
        num_queries: Further images of each class that it has to name, at least 1.
    """

    num_ways: int = 5
    num_shots: int = 5
    num_queries: int = 19

    def __post_init__(self) -> None:
        for name, least in (("num_ways", 2), ("num_shots", 1), ("num_queries", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"{name}: expected at least {least}, found {getattr(self, name)}; raise it"
                )

    @property
    def images_per_class(self) -> int:
        """Images of a class that an episode needs."""
        return self.num_shots + self.num_queries


@dataclass(frozen=True, eq=False)
class Episode:
    """What a learner is given.

    Attributes:
        support: Inputs of the labelled images, class by class; the first axis has
            ``num_ways * num_shots`` rows.
        support_classes: int64 array of their classes, 0 to ``num_ways - 1``.
        queries: Inputs of the images to be named.
        num_ways: Classes of the episode.
        seed: Of the run, for learners that draw.
        number: Of the episode in the run, from 0, likewise.
    """

    support: Inputs
    support_classes: Int64s
    queries: Inputs
    num_ways: int
    seed: int
    number: int


@dataclass(frozen=True, eq=False)
class Episodes:
    """The drawn images of one run's episodes.

    Attributes:
        classes: int64 array of shape (episodes, ways): class labels.
        indices: int64 array of shape (episodes, ways, shots + queries): rows of the data, the
            support of each class before its queries.
        num_shots: Images of the support in each class.
    """

    classes: Int64s
    indices: Int64s
    num_shots: int

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def num_ways(self) -> int:
        """Classes of an episode."""
        return int(self.classes.shape[1])

    @property
    def num_queries(self) -> int:
        """Queries of a class."""
        return int(self.indices.shape[2]) - self.num_shots

    def episode(self, number: int, inputs: Inputs, seed: int) -> Episode:
        """Return what a learner sees of an episode, given the inputs of all images."""
        rows = self.indices[number]
        return Episode(
            support=inputs[rows[:, : self.num_shots].ravel()],
            support_classes=np.repeat(np.arange(self.num_ways), self.num_shots),
            queries=inputs[rows[:, self.num_shots :].ravel()],
            num_ways=self.num_ways,
            seed=seed,
            number=number,
        )


def class_sizes(labels: Int64s) -> dict[int, int]:
    """Return how many images each class has; the classes are those that occur.

    Examples:
        >>> class_sizes(np.array([7, 3, 7]))
        {3: 1, 7: 2}
    """
    classes, sizes = np.unique(labels, return_counts=True)
    return dict(zip(classes.tolist(), sizes.tolist(), strict=True))


def draw_episodes(
    labels: Int64s, shape: EpisodeShape, num_episodes: int, *, seed: int, run: int = 0
) -> Episodes:
    """Draw episodes: classes uniformly without replacement, and of each so many images likewise.

    Args:
        labels: The class of every image, shape (images,). Which classes there are is read from it.
        shape: Ways, shots and queries.
        num_episodes: At least 1. More of them leave the first ones as they are.
        seed: Of the draws.
        run: Another run draws other episodes.

    Raises:
        ConfigError: No episode is asked for.
        DataError: There are too few classes, or a class has too few images.

    Examples:
        >>> drawn = draw_episodes(np.arange(60) % 3, EpisodeShape(2, 1, 4), 10, seed=0)
        >>> drawn.classes.shape, drawn.indices.shape
        ((10, 2), (10, 2, 5))
    """
    if num_episodes < 1:
        raise ConfigError(f"num_episodes: expected at least 1, found {num_episodes}; raise it")
    sizes = class_sizes(labels)
    small = [f"{name} ({size})" for name, size in sizes.items() if size < shape.images_per_class]
    if small:
        more = f" and {len(small) - _NAMED} more" if len(small) > _NAMED else ""
        raise DataError(
            f"classes: expected at least {shape.images_per_class} images of each, for "
            f"{shape.num_shots} shots and {shape.num_queries} queries, found fewer of "
            f"{', '.join(small[:_NAMED])}{more}; leave these classes out, or ask for fewer"
        )
    if len(sizes) < shape.num_ways:
        raise DataError(
            f"classes: expected at least num_ways = {shape.num_ways}, found {len(sizes)}; lower it"
        )
    members = {name: np.flatnonzero(labels == name) for name in sizes}
    names = np.array(list(sizes), dtype=np.int64)
    classes = np.empty((num_episodes, shape.num_ways), dtype=np.int64)
    indices = np.empty((*classes.shape, shape.images_per_class), dtype=np.int64)
    for number in range(num_episodes):
        stream = numpy_stream(seed, "few-shot episodes", run, number)
        classes[number] = stream.choice(names, shape.num_ways, replace=False)
        for way, name in enumerate(classes[number].tolist()):
            indices[number, way] = stream.choice(
                members[name], shape.images_per_class, replace=False
            )
    return Episodes(classes, indices, shape.num_shots)


def episodes_of_runs(
    labels: Int64s,
    shape: EpisodeShape,
    num_episodes: int,
    *,
    num_runs: int = 3,
    episode_seed: EpisodeSeed = "fixed",
    seed: int = 0,
) -> list[Episodes]:
    """Draw the episodes of several runs.

    Args:
        labels: The class of every image.
        shape: Ways, shots and queries.
        num_episodes: Of a run.
        num_runs: At least 1.
        episode_seed: ``fixed``: all runs have the same episodes, and differ by what learners draw.
            ``per_run``: every run draws its own.
        seed: Of the draws.

    Raises:
        ConfigError: A number is too small.
        DataError: As for ``draw_episodes``.
    """
    if num_runs < 1:
        raise ConfigError(f"num_runs: expected at least 1, found {num_runs}; raise it")
    if episode_seed == "fixed":
        return [draw_episodes(labels, shape, num_episodes, seed=seed)] * num_runs
    return [draw_episodes(labels, shape, num_episodes, seed=seed, run=r) for r in range(num_runs)]
