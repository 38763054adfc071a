"""What the numbers say, in sentences."""

from collections.abc import Iterator

from fedsim.comparison import Difference
from fedsim.over_seeds import OverSeeds
from fedsim.page.render import Card
from fedsim.report.classes import class_scores
from fedsim.report.gather import Entry, Group
from fedsim.report.words import interval, listed, percent, plural, rounded_up, signed

_MOST_CARDS = 12
_CLASSES_NAMED = 3


def answer_text(group: Group) -> str:
    """Return what the others are compared with, and the two levels that belong to any score."""
    reference = group.reference
    seeds = plural(len(reference.runs), "seed")
    kind = "centralized" if reference.is_centralized else "federated"
    noise = "with" if reference.is_private else "without"
    lines = [
        f"The reference is {reference.name}: {kind}, {noise} privacy, over {seeds}. On test it has "
        f"macro AP {_score(reference, 'macro_ap')} and micro AP {_score(reference, 'micro_ap')}."
    ]
    constant = group.constant
    lines.append(
        "The constant predictor, which gives every image each label's frequency in train, has "
        f"{percent(constant['macro_ap'])} and {percent(constant['micro_ap'])}."
    )
    for entry in group.entries:
        if entry.is_centralized and not entry.is_private and entry is not reference:
            macro, micro = _score(entry, "macro_ap"), _score(entry, "micro_ap")
            lines.append(f"Trained in one place ({entry.name}) it is {macro} and {micro}.")
    return " ".join(lines)


def answer_cards(group: Group) -> Iterator[Card]:
    """Yield what each private setting costs; of other settings if none is private."""
    for entry in _told(group)[:_MOST_CARDS]:
        macro = entry.differences.get("macro_ap")
        if macro is None:
            yield Card(
                entry.name, "undefined", "A seed has no macro AP.", tuple(_facts(entry, group))
            )
            continue
        value = f"{signed(macro.over_seeds.value)} points"
        text = f"of macro AP against {group.reference.name}: {macro.verdict}"
        yield Card(entry.name, value, text, tuple(_facts(entry, group)))


def caution_text(group: Group) -> str:
    """Return what one must know not to read too much into the differences."""
    told = _told(group)
    lines = [
        "A difference is called larger or smaller only if two 95 % intervals leave out 0: over "
        "seeds (other seeds would show it) and over test users (other users would show it)."
    ]
    if group.users_reason is None:
        lines.append(f"The latter is from {group.num_resamples:,} resamples of the users.")
    else:
        lines.append(f"There is none over users: {group.users_reason}.")
    if len(group.reference.runs) < 5:
        lines.append(
            f"With {plural(len(group.reference.runs), 'seed')}, intervals over seeds are wide: "
            "more seeds can turn noise into a finding."
        )
    if len(group.others) > 1:
        lines.append(
            f"{len(group.others)} settings are compared with the reference: if all were equal to "
            "it, one in twenty would still seem to differ by the seeds' noise alone."
        )
    if len(told) > _MOST_CARDS:
        lines.append(f"The {_MOST_CARDS} most private settings are told; the table has all.")
    return " ".join(lines)


def plain_answer(group: Group) -> list[str]:
    """Return the answer as lines for a terminal."""
    lines = []
    for card in answer_cards(group):
        facts = "; ".join(f"{name} {value}" for name, value in card.facts)
        lines.append(f"{card.title}: {card.value} {card.text} ({facts})")
    return [answer_text(group), *lines, caution_text(group)]


def _told(group: Group) -> tuple[Entry, ...]:
    return group.private or group.others


def _facts(entry: Entry, group: Group) -> Iterator[tuple[str, str]]:
    macro, micro = entry.differences.get("macro_ap"), entry.differences.get("micro_ap")
    yield "macro AP", _score(entry, "macro_ap") + (f"; {_intervals(macro)}" if macro else "")
    if micro is not None:
        value = signed(micro.over_seeds.value)
        score = _score(entry, "micro_ap")
        yield "micro AP", f"{score}, {value}: {micro.verdict}; {_intervals(micro)}"
    guarantee = _guarantee(entry)
    if guarantee:
        yield "epsilon", guarantee
    classes = _classes(entry, group)
    if classes:
        yield "classes", classes


def _guarantee(entry: Entry) -> str:
    setting = entry.setting
    parts = []
    if setting.epsilon_at_noise_cohort is not None:
        cohort = rounded_up(setting.epsilon_at_noise_cohort)
        run = rounded_up(setting.epsilon_as_run)
        parts.append(run if cohort == run else f"{cohort} at the noise cohort, {run} as run")
    if setting.example_epsilon_max is not None:
        parts.append(f"{rounded_up(setting.example_epsilon_max)} for each image, at most")
    return "; ".join(parts)


def _classes(entry: Entry, group: Group) -> str:
    """Tell the classes that lose beyond the seeds' noise, the largest losses first."""
    scores = [score for score in class_scores(entry, group) if score.change is not None]
    if not any(score.change and score.change.interval for score in scores):
        return ""
    beyond = [(s.change.value, s.label) for s in scores if s.change and s.is_beyond_seeds]
    lost = sorted((value, label) for value, label in beyond if value < 0)
    if not lost:
        return f"none of {len(scores)} loses beyond the seeds' noise"
    named = [f"{label} {signed(value)}" for value, label in lost[:_CLASSES_NAMED]]
    named += [f"{len(lost) - len(named)} more"] if len(lost) > len(named) else []
    verb = "loses" if len(lost) == 1 else "lose"
    return f"{len(lost)} of {len(scores)} {verb} beyond the seeds' noise: {listed(named)}"


def _intervals(difference: Difference) -> str:
    over = difference.over_seeds.interval
    users = difference.over_users
    return f"{interval(over)} over seeds, {interval(users)} over users"


def _score(entry: Entry, metric: str) -> str:
    over: OverSeeds | None = entry.setting.scores[metric]
    if over is None:
        return "undefined"
    spread = "" if over.deviation is None else f" (sd {100 * over.deviation:.1f})"
    return f"{percent(over.mean)}{spread}"
