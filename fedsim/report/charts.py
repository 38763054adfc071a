"""The figures of compared settings."""

import json
import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedsim.chart import Chart
from fedsim.comparison import COMPARED
from fedsim.figures import bar_figure
from fedsim.report.classes import class_scores
from fedsim.report.figures import (
    curve_figure,
    pair_figure,
    quantile_figure,
    span_figure,
    trail_figure,
)
from fedsim.report.gather import Entry, Group
from fedsim.report.marks import (
    MUTED_PEN,
    PENS,
    REFERENCE_PEN,
    Curve,
    Level,
    Pen,
    Point,
    Span,
    Trail,
)
from fedsim.report.per_user import UserScores
from fedsim.report.rounds import OverRounds, at_best_round, over_rounds, seconds_of

WORDS = {"macro_ap": "macro AP", "micro_ap": "micro AP"}
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
MOST_ROWS = 40
_THE_SAME = "The same for micro AP."
_EPSILONS = {
    "epsilon at the noise cohort": "epsilon_at_noise_cohort",
    "epsilon as run": "epsilon_as_run",
}


def difference_charts(group: Group, suffix: str) -> Iterator[Chart]:
    """Draw what each setting differs from the reference, with both intervals."""
    for metric in COMPARED:
        spans = [span for entry in group.others if (span := _span(entry, metric)) is not None]
        if not spans:
            continue
        title = f"Test {WORDS[metric]} against {group.reference.name}"
        caption = (
            "Points by which each setting is above or below the reference, with 95 % intervals: "
            "would other seeds show it, and would other test users? Where either bar crosses the "
            "line, the noise explains it. Bars over few seeds are cut where they are very long."
        )
        if metric != COMPARED[0]:
            caption = _THE_SAME
        if len(spans) > MOST_ROWS:
            caption += f" The first {MOST_ROWS} of {len(spans)} settings."
        figure = span_figure(title, spans[:MOST_ROWS], x=f"difference in {WORDS[metric]}, points")
        yield Chart(f"difference_{metric}{suffix}", title, caption, figure)


def learning_charts(group: Group, suffix: str) -> Iterator[Chart]:
    """Draw validation scores over rounds."""
    pens = pens_of(group)
    for metric in COMPARED:
        recorded = [
            (entry, over_rounds(entry, "val", metric)) for entry in _drawn_over_rounds(group)
        ]
        curves = [_curve(entry, found, pens[entry.name]) for entry, found in recorded]
        curves = [curve for curve in curves if len(curve.x)]
        if not curves:
            continue
        title = f"Validation {WORDS[metric]} over rounds"
        caption = (
            "Mean over seeds, and the band from the lowest seed to the highest. Dotted levels do "
            "not depend on rounds: the constant predictor, and the best centralized training at "
            "its best epoch."
        )
        if metric != COMPARED[0]:
            caption = _THE_SAME
        elif any(pens[entry.name] is MUTED_PEN for entry in _drawn_over_rounds(group)):
            caption += " Thin gray lines are the other settings."
        figure = curve_figure(
            title, curves, _validation_levels(group, metric), x="round", y=f"{WORDS[metric]}, %"
        )
        yield Chart(f"learning_{metric}{suffix}", title, caption, figure)


def privacy_charts(group: Group, suffix: str) -> Iterator[Chart]:
    """Draw test scores against epsilon and against the noise multiplier."""
    for metric in COMPARED:
        by_epsilon = [
            trail
            for series, key in _EPSILONS.items()
            for trail in _trails(group, metric, key, series, is_named="noise" in series)
        ]
        title = f"Test {WORDS[metric]} against epsilon"
        caption = (
            "A setting under central DP is a point at each of its two epsilons: that of the "
            "deployment with the noise cohort (filled), and that of this simulation as it ran "
            "(hollow). Lines join settings that differ in their noise alone; bars are one "
            "standard deviation over seeds. Smaller epsilons, to the left, protect more."
        )
        if by_epsilon:
            yield _trail_chart(group, metric, f"epsilon_{metric}{suffix}", title, caption,
                               by_epsilon, "epsilon")  # fmt: skip
    for metric in COMPARED:
        by_noise = list(_trails(group, metric, "", "noise multiplier", is_named=True))
        title = f"Test {WORDS[metric]} against noise"
        caption = (
            "The same settings against their noise multiplier: the standard deviation of the noise "
            "on the sum over the noise cohort, in units of its sensitivity. More noise is to the "
            "right."
        )
        if by_noise:
            yield _trail_chart(group, metric, f"noise_{metric}{suffix}", title, caption,
                               by_noise, "noise multiplier")  # fmt: skip
    for metric in COMPARED:
        by_example = list(
            _trails(group, metric, "example_epsilon_max", "example-level epsilon", is_named=True)
        )
        title = f"Test {WORDS[metric]} against example-level epsilon"
        caption = (
            "Settings whose guarantee is for single images, at the largest epsilon of any user: it "
            "can't be compared with the user-level epsilons above."
        )
        if by_example:
            yield _trail_chart(group, metric, f"example_epsilon_{metric}{suffix}", title, caption,
                               by_example, "largest example-level epsilon")  # fmt: skip


def infinite_epsilons(group: Group) -> list[str]:
    """Return names of settings under central DP that no epsilon axis can hold."""
    return [
        entry.name
        for entry in group.entries
        if any(
            value is not None and math.isinf(value)
            for value in (entry.setting.epsilon_as_run, entry.setting.epsilon_at_noise_cohort)
        )
    ]


def class_chart(group: Group, suffix: str) -> Chart | None:
    """Draw each class's AP against its frequency: the reference and the most private setting."""
    other = (*group.private, *group.others)[:1]
    if not other:
        return None
    names = (group.reference.name, other[0].name)
    pairs = zip(class_scores(group.reference, group), class_scores(other[0], group), strict=True)
    points = [
        (one.label, float(max(one.train_positives, 1)), 100 * one.ap, 100 * two.ap)
        for one, two in pairs
        if one.ap is not None and two.ap is not None
    ]
    if not points:
        return None
    title = "Each class's AP against how frequent it is"
    caption = (
        "A class is a line from its AP under the one setting (circle) to that under the other "
        "(square), means over seeds; the classes that change most are named. A rare class is at "
        "the left; few positives make AP uncertain."
    )
    return Chart(f"classes{suffix}", title, caption, pair_figure(title, names, points))


def user_chart(group: Group, scores: UserScores, suffix: str) -> Chart | None:
    """Draw how each setting's scores are spread over test users."""
    known = {**scores.by_entry, "constant predictor": scores.constant}
    rows = []
    for name, values in known.items():
        defined = values[~np.isnan(values)]
        if len(defined):
            low, first, middle, third, high = (100 * np.quantile(defined, QUANTILES)).tolist()
            rows.append((name, (low, first, middle, third, high)))
    if not rows:
        return None
    title = "Test users, from the worst off to the best"
    caption = (
        "Micro AP of each test user's own images, mean over seeds: how well the model ranks the "
        "labels that the user has above those that the user lacks. The left end of a line is what "
        "the worst tenth of users stay below."
    )
    if len(rows) > MOST_ROWS:
        caption += f" The first {MOST_ROWS} of {len(rows)}."
    figure = quantile_figure(title, rows[:MOST_ROWS], x="micro AP of a user's own images, %")
    return Chart(f"users{suffix}", title, caption, figure)


def time_charts(group: Group, suffix: str) -> Iterator[Chart]:
    """Draw seconds of rounds, over rounds and by setting."""
    pens = pens_of(group)
    curves = []
    for entry in _drawn_over_rounds(group):
        found = over_rounds(entry, "train", "seconds")
        if len(found.rounds):
            name = entry.name if pens[entry.name] is not MUTED_PEN else ""
            curves.append(Curve(name, pens[entry.name], found.rounds, found.mean))
    if curves:
        title = "Seconds of training in each round"
        caption = "Mean over seeds. What else ran on the machine is in it."
        figure = curve_figure(title, curves, [], x="round", y="seconds")
        yield Chart(f"seconds_by_round{suffix}", title, caption, figure)
    timed = [(e, seconds_of(e, "train"), seconds_of(e, "val")) for e in group.entries]
    shown = [(e.name, t or 0.0, v or 0.0) for e, t, v in timed if t is not None or v is not None]
    if shown:
        title = "Mean seconds of a round"
        caption = "Of training, and of scoring on validation; of centralized settings, an epoch's."
        names, training, scoring = zip(*shown[:MOST_ROWS], strict=True)
        bars = {"training": np.array(training), "scoring": np.array(scoring)}
        yield Chart(f"seconds{suffix}", title, caption, bar_figure(title, names, bars, x="seconds"))


def pens_of(group: Group) -> dict[str, Pen]:
    """Return how each setting is drawn: the reference, the best and the first others in colour."""
    best = [e for e in group.others if not e.is_centralized and e.setting.scores["macro_ap"]]
    best.sort(key=lambda entry: -_mean(entry, "macro_ap"))
    ranked = list(dict.fromkeys([*best[:1], *group.others]))[: len(PENS)]
    coloured = [entry for entry in group.others if entry in ranked]  # neighbours in order
    pens = {entry.name: MUTED_PEN for entry in group.others}
    pens |= {entry.name: pen for entry, pen in zip(coloured, PENS, strict=False)}
    return {group.reference.name: REFERENCE_PEN, **pens}


def _drawn_over_rounds(group: Group) -> list[Entry]:
    """Return the federated settings; the centralized ones where there are no others."""
    federated = [entry for entry in group.entries if not entry.is_centralized]
    return federated or list(group.entries)


def _curve(entry: Entry, found: OverRounds, pen: Pen) -> Curve:
    values = 100 * found.values
    band = None
    if len(values) > 1 and pen is not MUTED_PEN:
        band = (values.min(axis=0), values.max(axis=0))
    name = "" if pen is MUTED_PEN else entry.name
    return Curve(name, pen, found.rounds, 100 * found.mean, band)


def _validation_levels(group: Group, metric: str) -> list[Level]:
    constant = group.reference.runs[0].summary["constant_predictor"]["val"][metric]
    levels = [] if constant is None else [Level("constant predictor", 100 * constant)]
    for entry in _best_centralized(group):
        value = at_best_round(entry, metric)
        if value is not None:
            levels.append(Level(entry.name, 100 * value))
    return levels


def _best_centralized(group: Group) -> list[Entry]:
    """Return the best centralized setting without privacy, and the best one with it."""
    if group.reference.is_centralized:
        return []
    known = [e for e in group.others if e.is_centralized and e.setting.scores["macro_ap"]]
    known.sort(key=lambda entry: -_mean(entry, "macro_ap"))
    kinds = ([e for e in known if e.is_private == private] for private in (False, True))
    return [entries[0] for entries in kinds if entries]


def _span(entry: Entry, metric: str) -> Span | None:
    difference = entry.differences.get(metric)
    if difference is None:
        return None
    over = difference.over_seeds
    seeds = (100 * over.interval[0], 100 * over.interval[1]) if over.interval else None
    users = difference.over_users
    people = (100 * users[0], 100 * users[1]) if users else None
    return Span(entry.name, 100 * over.value, seeds, people)


def _trails(group: Group, metric: str, key: str, series: str, *, is_named: bool) -> Iterator[Trail]:
    """Yield the points of settings that differ in their noise alone; ``key`` "" is the noise."""
    families: dict[str, list[Point]] = {}
    for entry in group.entries:
        x = getattr(entry.setting, key) if key else entry.noise_multiplier
        point = _point(entry, metric, x)
        if point is not None:
            families.setdefault(_all_but_noise(entry), []).append(point)
    for points in families.values():
        yield Trail(series, tuple(sorted(points, key=lambda point: point.x)), is_named)


def _point(entry: Entry, metric: str, x: float | None) -> Point | None:
    over = entry.setting.scores[metric]
    if x is None or not math.isfinite(x) or x <= 0 or over is None:
        return None
    spread = over.deviation or 0.0
    low, high = over.mean - spread, over.mean + spread
    return Point(entry.name, x, 100 * over.mean, 100 * low, 100 * high)


def _all_but_noise(entry: Entry) -> str:
    """Return the settings without those that set how much noise there is."""
    config = {k: v for k, v in entry.config.items() if k not in ("name", "case", "seed")}
    if entry.is_centralized:
        return f"{entry.name} {json.dumps(config, sort_keys=True)}"
    privacy = {
        level: {k: v for k, v in settings.items() if k not in ("epsilon", "noise_multiplier")}
        for level, settings in config["privacy"].items()
        if settings
    }
    return json.dumps({**config, "privacy": privacy}, sort_keys=True)


def _trail_chart(
    group: Group, metric: str, name: str, title: str, caption: str, trails: Sequence[Trail], x: str
) -> Chart:
    levels = []
    constant = group.constant[metric]
    if constant is not None:
        levels.append(Level("constant predictor", 100 * constant))
    levels += [
        Level(entry.name, 100 * _mean(entry, metric))
        for entry in (group.reference, *_best_centralized(group))
        if not entry.is_private and entry.setting.scores[metric] is not None
    ]
    if metric != COMPARED[0]:
        caption = _THE_SAME
    figure = trail_figure(title, trails, levels, x=x, y=f"test {WORDS[metric]}, %")
    return Chart(name, title, caption, figure)


def _mean(entry: Entry, metric: str) -> float:
    over = entry.setting.scores[metric]
    return over.mean if over else -math.inf
