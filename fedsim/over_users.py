"""Differences between runs over their test users, from scores that the runs kept."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsim.kept_scores import KeptScores, load_kept_scores
from fedsim.metrics.bootstrap import Resampled, percentile_interval, resample_users


class UserResamples:
    """Average precision of runs on the same resamples of the test users.

    Each run is read and resampled once, however many others it is compared with.

    Args:
        num_resamples: Of the users, at least 1.
        seed: Of the resamples.
    """

    def __init__(self, num_resamples: int = 1000, seed: int = 0) -> None:
        self._num_resamples, self._seed = num_resamples, seed
        self._first: KeptScores | None = None
        self._known: dict[Path, dict[str, Resampled]] = {}

    def difference(
        self, ours: Sequence[Path], theirs: Sequence[Path], metric: str, confidence: float = 0.95
    ) -> tuple[float, float]:
        """Return the paired bootstrap interval of the difference of two means over runs.

        In every resample both means are taken over the same users. The ends are percentiles: what
        few users add to macro AP they add to both. Of 200 samples of 91 users, the 95 % interval
        held the true difference of macro AP in 0.98 (none), 0.94 (0.18) and 0.96 (0.13); the basic
        interval did in 0.97, 0.86 and 0.88, BCa in 0.95, 0.88 and 0.89; for micro AP all were
        alike, 0.91 to 0.95.

        Args:
            ours: Folders of runs, at least one: the seeds of a setting.
            theirs: Folders of runs, at least one.
            metric: "macro_ap" or "micro_ap".
            confidence: Of the interval, in (0, 1).

        Raises:
            DataError: Scores were not kept or can't be read, or the test splits differ.
        """
        one, other = (self._mean([self._of(f)[metric] for f in side]) for side in (ours, theirs))
        difference = Resampled(one.value - other.value, one.resamples - other.resamples)
        return percentile_interval(difference, confidence)

    def _mean(self, runs: Sequence[Resampled]) -> Resampled:
        values = np.mean([run.value for run in runs])
        return Resampled(float(values), np.mean([run.resamples for run in runs], axis=0))

    def _of(self, folder: Path) -> dict[str, Resampled]:
        if folder not in self._known:
            kept = load_kept_scores(folder)
            self._first = self._first or kept
            self._first.check_comparable(kept, str(folder))
            self._known[folder] = resample_users(
                kept.targets,
                kept.logits,
                kept.owner,
                num_resamples=self._num_resamples,
                seed=self._seed,
            )
        return self._known[folder]
