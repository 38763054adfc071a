"""The tables that end a run, and the one that a plan is."""

from typing import Any

from rich.table import Table


def comparison_table(summaries: list[dict[str, Any]]) -> Table:
    """Make the table that compares finished runs with the constant predictor on test."""
    table = Table(title="test, from the best validation round", title_justify="left")
    table.add_column("run", no_wrap=True)
    for name in ("macro AP", "95 %", "micro AP", "95 %", "best round"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("epsilon as run", "epsilon at noise cohort", "largest example-level epsilon"):
        table.add_column(name, justify="right")
    table.add_column("time", justify="right", no_wrap=True)
    for constant in _distinct([s["constant_predictor"]["test"] for s in summaries]):
        scores = [percent(constant["macro_ap"]), "", percent(constant["micro_ap"])]
        table.add_row("constant predictor", *scores, "", "", "", "", "", "")
    for summary in summaries:
        table.add_row(summary["run_id"], *_scores(summary), *_epsilons(summary))
    return table


def class_tables(summaries: list[dict[str, Any]]) -> list[Table]:
    """Make tables of every class's AP on test, one for each set of labels."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for summary in summaries:
        labels = tuple(row["label"] for row in summary["test"]["per_class"])
        groups.setdefault(labels, []).append(summary)
    return [_class_table(group) for group in groups.values()]


def _class_table(summaries: list[dict[str, Any]]) -> Table:
    table = Table(title="AP per class on test", title_justify="left")
    table.add_column("label", no_wrap=True)
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    for summary in summaries:
        table.add_column(summary["run_id"], justify="right")
    for rows in zip(*(s["test"]["per_class"] for s in summaries), strict=True):
        first = rows[0]
        counts = (str(first["train_positives"]), str(first["positives"]))
        table.add_row(first["label"], *counts, *(percent(row["ap"]) for row in rows))
    return table


def percent(fraction: float | None) -> str:
    """Format a fraction as percent; a dash for what could not be computed.

    Examples:
        >>> percent(0.1234), percent(None)
        (' 12.34', '     -')
    """
    return "     -" if fraction is None else f"{100 * fraction:6.2f}"


def epsilon(value: float | str | None) -> str:
    """Format an epsilon, upwards: what is printed is never below the truth.

    Examples:
        >>> epsilon(1.23401), epsilon("infinity"), epsilon(None)
        ('1.24', 'inf', '')
    """
    if value is None:
        return ""
    number = float(value)
    if number in (float("inf"), 0.0):
        return f"{number:.0f}" if number == 0.0 else "inf"
    digits = 2 if number < 100 else 1
    rounded = round(number, digits)
    return f"{rounded if rounded >= number else rounded + 10**-digits:.{digits}f}"


def _scores(summary: dict[str, Any]) -> list[str]:
    test = summary["test"]
    cells = []
    for name in ("macro_ap", "micro_ap"):
        interval = test["intervals"][name] if test["intervals"] else None
        cells.append(percent(test["scores"][name]))
        cells.append(f"{100 * interval[0]:.1f}-{100 * interval[1]:.1f}" if interval else "")
    return [*cells, str(summary["best_round"])]


def _epsilons(summary: dict[str, Any]) -> list[str]:
    card = summary["privacy"]
    central, example = card.get("central") or {}, card.get("example_level") or {}
    return [
        epsilon(central.get("epsilon_as_run")),
        epsilon(central.get("epsilon_at_noise_cohort")),
        epsilon(example.get("epsilon_max")),
        f"{summary['seconds']:.0f} s",
    ]


def _distinct(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for index, item in enumerate(items) if item not in items[:index]]


def plan_table(entries: list[dict[str, Any]]) -> Table:
    """Make the table of what runs will spend."""
    table = Table(title="what these runs will spend", title_justify="left")
    table.add_column("run", overflow="fold")
    columns = {
        "users": "population_size", "cohort": "cohort_size", "rounds": "num_rounds",
        "noise cohort": "noise_cohort_size", "delta": "delta",
        "noise multiplier": "noise_multiplier", "noise std on the mean": "noise_stddev_mean",
        "epsilon as run": "epsilon_as_run", "epsilon at noise cohort": "epsilon_at_noise_cohort",
    }  # fmt: skip
    for name in (*columns, "largest example-level epsilon", "update"):
        table.add_column(name, justify="right")
    for entry in entries:
        example = (entry.get("example_level") or {}).get("epsilon_max")
        size = entry.get("update_mb")
        table.add_row(
            entry["run_id"],
            *(_figure(entry.get(key)) for key in columns.values()),
            _figure(example),
            f"{size:.3g} MB" if size is not None else "",
        )
    return table


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else f"{value:,}"


def runs_table(rows: list[dict[str, Any]]) -> Table:
    """Make the list of recorded runs, from the rows of ``fedsim.load_runs``."""
    table = Table(title=f"{len(rows)} runs", title_justify="left")
    table.add_column("experiment")
    table.add_column("run", overflow="fold")
    table.add_column("status")
    for name in ("rounds", "macro AP", "micro AP", "epsilon as run", "epsilon at noise cohort"):
        table.add_column(name, justify="right")
    for row in rows:
        numbers = {key: None if value != value else value for key, value in row.items()}
        table.add_row(
            *(str(row[key]) for key in ("name", "run_id", "status", "num_rounds")),
            percent(numbers.get("macro_ap")),
            percent(numbers.get("micro_ap")),
            epsilon(numbers.get("epsilon_as_run")),
            epsilon(numbers.get("epsilon_at_noise_cohort")),
        )
    return table
