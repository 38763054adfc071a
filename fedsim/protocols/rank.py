"""What ``fedsim evaluate rank`` shows: average ranks of submissions."""

import dataclasses

from fedsim.chart import Chart
from fedsim.evaluation.rank import Results, Ties, rank_submissions
from fedsim.protocols.output import Findings
from fedsim.protocols.rank_figure import ranks_on_a_line
from fedsim.tables import Column, Table

_TIES = {
    "average": "share the mean of their ranks",
    "min": "share the best of their ranks",
    "dense": "share a rank, and none is left out after them",
    "statistical": "are those within the root of their summed squared intervals of the best left, "
    "and share the mean of their ranks",
}


def rank_findings(results: Results, ties: Ties) -> Findings:
    """Return the table, the JSON and the figure of a ranking.

    Args:
        results: As for ``rank_submissions``.
        ties: Likewise.

    Raises:
        FedsimError: Likewise.
    """
    standings = rank_submissions(results, ties)
    data_sets = list(standings[0].ranks)
    heads = [Column("place"), Column("submission"), Column("average_rank", digits=4)]
    table = Table(
        "rank",
        "Average rank over data sets",
        (*heads, *(Column(name, digits=1) for name in data_sets)),
        tuple((of.place, of.submission, of.average_rank, *of.ranks.values()) for of in standings),
        f"By each submission's worst run. Ties on a data set {_TIES[ties]}; equal average ranks go "
        "to the earlier submission. A missing or failed data set has the worst rank, "
        f"{len(standings)}.",
    )
    facts = {"ties": ties, "standings": [dataclasses.asdict(of) for of in standings]}
    caption = "Mean over data sets of the rank of each submission's worst run; 1 is the best."

    def charts() -> list[Chart]:
        averages = {of.submission: of.average_rank for of in standings}
        figure = ranks_on_a_line(table.title, averages)
        return [Chart("rank", table.title, caption, figure)]

    return Findings("rank", facts, (table,), (), charts)
