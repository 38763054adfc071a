"""The end of a run, user by user: test users, the last cohort, and models of users' own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedsim import build
from fedsim.data.dataset import FederatedDataset, UserTable
from fedsim.data.users_elsewhere import UsersElsewhere
from fedsim.evaluation.per_user import UserResults, write_users
from fedsim.evaluation.personalize import Fit, personalize, write_personalized
from fedsim.evaluation.scoring import SplitScorer
from fedsim.jobs import Job
from fedsim.record import RunFolder


@dataclass(frozen=True)
class Models:
    """The two models that every user's results are about.

    Attributes:
        best: Of the best round: what the run came to.
        initial: What it began with.
    """

    best: ArrayRecord
    initial: ArrayRecord


def score_users(
    job: Job,
    folder: RunFolder,
    dataset: FederatedDataset,
    grid: Grid,
    models: Models,
    *,
    test: SplitScorer,
    test_logits: npt.NDArray[np.float32],
    last_round: int,
) -> dict[str, Any]:
    """Score users one by one, and write their tables to the run's folder.

    Args:
        job: The run.
        folder: Its folder.
        dataset: The data.
        grid: Where models run.
        models: Which are compared.
        test: Of the whole test split.
        test_logits: The best model's there.
        last_round: Whose cohort is scored on its own images.

    Returns:
        ``per_user``: by ``UserResults.summary``, for ``test`` and, of a federated run, for
        ``diagnostic_train``: the users who answered in the last round, if any did. Under central DP
        that is not released, and in a deployment the server can't tell. ``personalization`` and
        ``num_users_never_in_time`` if the settings ask for them.
    """
    config = job.config
    users, initial = dataset.users("test"), test.logits(models.initial)
    by_split = {"test": UserResults.of(users, test.targets, test_logits, initial)}
    per_user = {"test": by_split["test"].summary("initial")}
    found: dict[str, Any] = {"per_user": per_user}
    if job.baseline is None:
        table = dataset.users("train")
        attendance = build.build_attendance(config, table)
        cohort = build.build_cohort(config, table).draw(last_round)
        if attendance is not None:
            cohort = cohort[attendance.absent(last_round, cohort.tolist()).answers]
            found["num_users_never_in_time"] = attendance.num_never_in_time()
        if isinstance(dataset, UsersElsewhere):
            found["diagnostic_train_reason"] = "the train users' images are on other machines"
        elif len(cohort):
            size = config.evaluation.batch_size
            by_split["train"] = _of_cohort(grid, dataset, cohort, models, size)
            per_user["diagnostic_train"] = by_split["train"].summary("initial")
    write_users(folder.path, by_split)
    return found | _personalized(job, folder, dataset, grid, models.best)


def _of_cohort(
    grid: Grid,
    dataset: FederatedDataset,
    cohort: npt.NDArray[np.int64],
    models: Models,
    batch_size: int,
) -> UserResults:
    table, positions = dataset.users("train"), np.sort(cohort)
    offsets = np.concatenate([[0], np.cumsum(table.num_images)])
    numbers = np.concatenate([np.arange(offsets[p], offsets[p + 1]) for p in positions])
    scorer = SplitScorer(grid, dataset, "train", batch_size=batch_size, indices=numbers)
    users = UserTable(tuple(table.ids[p] for p in positions), table.num_images[positions])
    best, initial = scorer.logits(models.best), scorer.logits(models.initial)
    return UserResults.of(users, scorer.targets, best, initial)


def _personalized(
    job: Job, folder: RunFolder, dataset: FederatedDataset, grid: Grid, best: ArrayRecord
) -> dict[str, Any]:
    settings = job.config.evaluation.personalization
    if settings is None:
        return {}
    fit = Fit(**settings.model_dump(), seed=job.config.seed)
    found = personalize(grid, dataset, best, fit)
    if found is None:
        reason = "no test user has two images"
        return {"personalization": None, "personalization_reason": reason}
    write_personalized(folder.path, found)
    return {"personalization": found.summary()}
