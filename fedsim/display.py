"""The tables that end a run, and the one that a plan is."""

import textwrap
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from fedsim.comparison import Setting, group_by_setting, rank_settings, split_tested_on

_MOST_COLUMNS, _MOST_CLASSES = 4, 40  # of a table of classes that a terminal can show

_LONGEST_NAME, _LONGEST_CELL = 40, 12  # letters that stand on one line
Cells = list[str]


def result_tables(summaries: list[dict[str, Any]], folders: list[Path]) -> list[Table]:
    """Make the tables that end an experiment.

    Runs over several seeds are shown by setting: mean, spread, and the difference from the first
    setting. A few settings get a table of all classes, too.

    Args:
        summaries: Of finished runs, in the order of the file.
        folders: Theirs.
    """
    tables = []
    for group in _same_test_split(summaries, folders):
        settings = group_by_setting([summary for summary, _ in group])
        if (
            len(settings) <= _MOST_COLUMNS
            and len(group[0][0]["test"]["per_class"]) <= _MOST_CLASSES
        ):
            tables.append(_class_table(settings, [summary for summary, _ in group]))
        several = any(len(setting.runs) > 1 for setting in settings)
        tables.append(_over_seeds(group) if several else _one_by_one(group))
    return tables


def _one_by_one(group: list[tuple[dict[str, Any], Path]]) -> Table:
    heads = [
        *("run", "macro AP", "95 %", "micro AP", "95 %", "best round"),
        *("epsilon as run", "epsilon at noise cohort", "largest example-level epsilon", "time"),
    ]
    rows = [_constant_row(group[0][0], ["", ""], len(heads))]
    for summary, _ in group:
        rows.append([summary["run_id"], *_scores(summary), *_epsilons(summary)])
    return _table("test, from the best validation round, in percent", heads, rows)


def _over_seeds(group: list[tuple[dict[str, Any], Path]]) -> Table:
    summaries, folders = [s for s, _ in group], [f for _, f in group]
    ranked = rank_settings(summaries, folders)
    reference = next(row.setting.name for row in ranked if not row.differences)
    heads = [
        *("setting", "seeds", "macro AP", "+-", "micro AP", "+-", f"macro AP less {reference}'s"),
        *("epsilon as run", "epsilon at noise cohort", "largest example-level epsilon"),
    ]
    rows = [_constant_row(summaries[0], ["", ""], len(heads), before=[""])]
    for row in ranked:
        setting = row.setting
        cells = [setting.name, str(len(setting.runs))]
        for name in ("macro_ap", "micro_ap"):
            score = setting.scores[name]
            deviation = score.deviation if score else None
            cells.append(percent(score.mean if score else None).strip())
            cells.append("" if deviation is None else f"{100 * deviation:.2f}")
        difference = row.differences.get("macro_ap")
        cells.append(
            f"{100 * difference.over_seeds.value:+.2f} ({difference.verdict})" if difference else ""
        )
        cells += [
            epsilon(setting.epsilon_as_run),
            epsilon(setting.epsilon_at_noise_cohort),
            epsilon(setting.example_epsilon_max),
        ]
        rows.append(cells)
    return _table("test, mean and deviation over seeds, in percent", heads, rows)


def _constant_row(
    summary: dict[str, Any], between: Cells, length: int, before: Cells | None = None
) -> Cells:
    constant = summary["constant_predictor"]["test"]
    cells = ["constant predictor", *(before or []), percent(constant["macro_ap"]).strip(), ""]
    cells += [percent(constant["micro_ap"]).strip(), ""]
    return cells + [""] * (length - len(cells))


def _table(title: str, heads: Cells, rows: list[Cells]) -> Table:
    """Make a table without the columns that are empty."""
    used = [k for k in range(len(heads)) if any(row[k] for row in rows)]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for k in used:
        longest = max(len(row[k]) for row in rows)
        whole = longest <= (_LONGEST_NAME if k == 0 else _LONGEST_CELL)
        table.add_column(
            "\n".join(textwrap.wrap(heads[k], _LONGEST_CELL)),
            justify="left" if k == 0 else "right",
            overflow="fold",
            no_wrap=whole,
            vertical="bottom",
        )
    for row in rows:
        table.add_row(*(row[k] for k in used))
    return table


def _same_test_split(
    summaries: list[dict[str, Any]], folders: list[Path]
) -> list[list[tuple[dict[str, Any], Path]]]:
    """Put runs together that can be compared: of the same test labels and counts."""
    groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], Path]]] = {}
    for summary, folder in zip(summaries, folders, strict=True):
        groups.setdefault(split_tested_on(summary), []).append((summary, folder))
    return list(groups.values())


def _class_table(settings: list[Setting], summaries: list[dict[str, Any]]) -> Table:
    heads = ["label", "train", "test", *(setting.name for setting in settings)]
    rows = []
    for number, first in enumerate(summaries[0]["test"]["per_class"]):
        cells = [first["label"], str(first["train_positives"]), str(first["positives"])]
        for setting in settings:
            runs = [summaries[position] for position in setting.runs.values()]
            found = [run["test"]["per_class"][number]["ap"] for run in runs]
            known = [ap for ap in found if ap is not None]
            mean = sum(known) / len(known) if known and len(known) == len(found) else None
            cells.append(percent(mean).strip())
        rows.append(cells)
    return _table("AP per class on test, mean over seeds, in percent", heads, rows)


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


def plan_table(entries: list[dict[str, Any]]) -> Table:
    """Make the table of what runs will spend."""
    columns = {
        "users": "population_size", "cohort": "cohort_size", "rounds": "num_rounds",
        "noise cohort": "noise_cohort_size", "delta": "delta",
        "noise multiplier": "noise_multiplier", "noise std on the mean": "noise_stddev_mean",
        "epsilon as run": "epsilon_as_run", "epsilon at noise cohort": "epsilon_at_noise_cohort",
    }  # fmt: skip
    heads = [
        "run",
        *columns,
        "largest example-level epsilon",
        "update",
        "held a round",
        "users' states",
    ]
    rows = []
    for entry in entries:
        held = entry.get("replies_held_mb")
        figures = {key: _figure(entry.get(key)) for key in columns.values()}
        figures |= {key: epsilon(entry.get(key)) for key in columns.values() if "epsilon" in key}
        rows.append(
            [
                entry["run_id"],
                *figures.values(),
                epsilon((entry.get("example_level") or {}).get("epsilon_max")),
                _size(entry.get("update_mb")),
                _size(held) if held != entry.get("update_mb") else "",
                _size(entry.get("client_states_mb")),
            ]
        )
    return _table("what these runs will spend", heads, rows)


def _size(megabytes: float | None) -> str:
    """Format a size; nothing for none.

    Examples:
        >>> _size(0.1234), _size(44.74), _size(1_840_000.0), _size(0.0)
        ('0.123 MB', '44.7 MB', '1.84 TB', '')
    """
    if not megabytes:
        return ""
    for unit, size in (("TB", 1e6), ("GB", 1e3)):
        if megabytes >= size:
            return f"{megabytes / size:.3g} {unit}"
    return f"{megabytes:.3g} MB"


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
