"""Puts a report together and writes it."""

from collections.abc import Iterator
from pathlib import Path

from fedsim import __version__
from fedsim.chart import save
from fedsim.errors import CheckpointError
from fedsim.page.render import Pairs, Section, render_page
from fedsim.report.answer import answer_cards, answer_text, caution_text
from fedsim.report.cards import privacy_details, privacy_table
from fedsim.report.charts import (
    class_chart,
    difference_charts,
    infinite_epsilons,
    learning_charts,
    privacy_charts,
    time_charts,
    user_chart,
)
from fedsim.report.classes import class_scores
from fedsim.report.few_shot import few_shot_charts, few_shot_scores, few_shot_table
from fedsim.report.files import csv_tables
from fedsim.report.gather import Gathered, Group
from fedsim.report.partition import partition_charts
from fedsim.report.per_user import user_scores
from fedsim.report.prevalence import prevalence_table
from fedsim.report.reproduce import (
    differing_table,
    reproduce_text,
    setting_details,
    versions_table,
)
from fedsim.report.tables import class_tables, comparison_table, time_table, user_table
from fedsim.report.words import plural
from fedsim.tables import write_csv

_NAMED = 20
_MOST_SERIES = 60  # that a reader chooses from


def write_report(gathered: Gathered, folder: Path, *, heading: str) -> Path:
    """Write ``index.html``, every figure as SVG and PNG in ``figures/``, and the CSV files.

    Args:
        gathered: Runs.
        folder: Where to; it is made, and files of these names in it are replaced.
        heading: Of the page.

    Returns:
        The page's path.

    Raises:
        CheckpointError: The folder can't be made or written to.
    """
    sections = [
        section
        for number, group in enumerate(gathered.groups, start=1)
        for section in _sections(group, number, len(gathered.groups))
    ]
    footer = (
        f"Made by fedsim report, fedsim {__version__}. Tables as CSV and figures lie beside it."
    )
    page, figures = folder / "index.html", folder / "figures"
    text = render_page(heading, _facts(gathered), sections, footer=footer)
    try:
        figures.mkdir(parents=True, exist_ok=True)
        for table in csv_tables(gathered.groups):
            write_csv(table, folder / f"{table.name}.csv")
        for section in sections:
            for chart in (*section.charts, *(pair.chart for pair in section.pairs)):
                save(chart, figures)
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{folder}: expected a folder to write to, found {error.strerror}; choose another --out"
        ) from error
    return page


def _facts(gathered: Gathered) -> list[tuple[str, str]]:
    runs = [run for group in gathered.groups for entry in group.entries for run in entry.runs]
    experiments = list(dict.fromkeys(run.summary["name"] for run in runs))
    settings = sum(len(group.entries) for group in gathered.groups)
    facts = [
        ("experiments", ", ".join(experiments)),
        ("runs", f"{len(runs):,} finished, of {plural(settings, 'setting')}"),
    ]
    if gathered.skipped:
        named = [f"{s.folder.name} ({s.reason})" for s in gathered.skipped[:_NAMED]]
        more = len(gathered.skipped) - len(named)
        named += [f"and {more:,} more"] if more else []
        facts.append(("left out", "; ".join(named)))
    if len(gathered.groups) == 1:
        return [*facts, ("test split", gathered.groups[0].title)]
    facts += [
        (f"test split {number}", f"{group.title}: {plural(len(group.entries), 'setting')}")
        for number, group in enumerate(gathered.groups, start=1)
    ]
    return [*facts, ("not compared", "settings that were tested on different splits")]


def _sections(group: Group, number: int, num_groups: int) -> Iterator[Section]:
    suffix = f"_{number}" if num_groups > 1 else ""
    prefix = f"Test split {number}: " if num_groups > 1 else ""

    def titled(title: str) -> str:
        return f"{prefix}{title[0].lower()}{title[1:]}" if prefix else title

    yield Section(
        titled("The answer"),
        f"{answer_text(group)}\n\n{caution_text(group)}",
        cards=tuple(answer_cards(group)),
        charts=tuple(difference_charts(group, suffix)),
    )
    yield Section(titled("Comparison"), tables=(comparison_table(group, suffix),))
    learning = tuple(learning_charts(group, suffix))
    if learning:
        yield Section(titled("Learning curves"), charts=learning)
    yield from _privacy_curve(group, titled("Privacy and utility"), suffix)
    yield _classes(group, titled("Classes"), suffix)
    yield _users(group, titled("Users"), suffix)
    few_shot = few_shot_scores(group)
    if few_shot:
        yield Section(
            titled("New classes"),
            charts=tuple(few_shot_charts(few_shot, suffix)),
            tables=(few_shot_table(few_shot, suffix),),
        )
    charts, text = partition_charts(group, suffix)
    yield Section(titled("Data"), text, charts=tuple(charts))
    table = privacy_table(group, suffix)
    yield Section(
        titled("Privacy"),
        tables=(table,) if table else (),
        details=tuple(privacy_details(group)),
    )
    yield Section(
        titled("Time and memory"),
        charts=tuple(time_charts(group, suffix)),
        tables=(time_table(group, suffix),),
    )
    differing = differing_table(group, suffix)
    yield Section(
        titled("Make it again"),
        reproduce_text(group),
        tables=(*((differing,) if differing else ()), versions_table(group, suffix)),
        details=tuple(setting_details(group)),
    )


def _privacy_curve(group: Group, title: str, suffix: str) -> Iterator[Section]:
    charts = tuple(privacy_charts(group, suffix))
    infinite = infinite_epsilons(group)
    text = f"Not drawn, since an epsilon is infinite: {', '.join(infinite)}." if infinite else ""
    if charts or text:
        yield Section(title, text, charts=charts)


def _classes(group: Group, title: str, suffix: str) -> Section:
    chart = class_chart(group, suffix)
    tables = class_tables(group, suffix)
    at_prevalence = prevalence_table(group, suffix)
    if at_prevalence is not None:
        tables += (at_prevalence,)
    if chart is None:
        return Section(title, tables=tables)
    entries = [group.reference, *group.private, *(e for e in group.others if not e.is_private)]
    scores = {entry.name: class_scores(entry, group) for entry in entries[:_MOST_SERIES]}
    first = next(iter(scores.values()))
    pairs = Pairs(
        chart,
        names=tuple(score.label for score in first),
        x=tuple(float(max(score.train_positives, 1)) for score in first),
        series={
            name: tuple(None if s.ap is None else round(100 * s.ap, 3) for s in of)
            for name, of in scores.items()
        },
        chosen=(entries[0].name, entries[1].name),
        axes=("images of train that have the class", "AP on test, %"),
    )
    return Section(title, tables=tables, pairs=(pairs,))


def _users(group: Group, title: str, suffix: str) -> Section:
    scores = user_scores(group)
    if scores is None:
        text = "No run kept its scores of test images, so there is nothing to tell of single users."
        return Section(title, text)
    text = ""
    if scores.without:
        text = "Not shown: " + "; ".join(f"{n} ({why})" for n, why in scores.without.items()) + "."
    chart = user_chart(group, scores, suffix)
    return Section(
        title,
        text,
        charts=(chart,) if chart else (),
        tables=(user_table(scores, group, suffix),),
    )
