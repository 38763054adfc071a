"""Each class's AP as if all classes were equally frequent."""

from pathlib import Path

import numpy as np
import pytest
from recorded_runs import LABELS, NOISE, TARGETS, write_run

from fedsim.metrics import average_precision
from fedsim.report.gather import gather
from fedsim.report.prevalence import PREVALENCE, prevalence_table


def test_ap_is_that_of_images_repeated_up_to_the_prevalence(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "plain", seed, quality=2.0)
    write_run(tmp_path, "silent", 0, keeps=False)
    (group,) = gather([tmp_path]).groups
    table = prevalence_table(group, "")
    assert table is not None
    assert [column.name for column in table.columns] == ["class", "in test", "plain"]
    values = [row[2] for row in table.rows]
    assert values == sorted(values, reverse=True)
    for label, positives, found in table.rows:
        has = TARGETS[:, LABELS.index(str(label))]
        assert positives == has.sum()
        # Every positive as often as there are negatives, and these nine times the positives.
        repeats = np.where(has, (~has).sum(), 9 * has.sum())
        direct = [
            average_precision(
                np.repeat(has, repeats)[:, None],
                np.repeat((2.0 * has + NOISE[seed][:, LABELS.index(str(label))]), repeats)[:, None],
            )
            for seed in range(2)
        ]
        assert found == pytest.approx(100 * np.mean(direct), abs=1e-4)
    assert PREVALENCE == 0.1


def test_no_table_without_kept_scores(tmp_path: Path) -> None:
    write_run(tmp_path, "silent", 0, keeps=False)
    (group,) = gather([tmp_path]).groups
    assert prevalence_table(group, "") is None
