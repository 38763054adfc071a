"""How the images of the compared runs are dealt to users."""

import dataclasses
import json

from fedsim.build import open_images
from fedsim.chart import Chart
from fedsim.config import DataConfig
from fedsim.errors import FedsimError
from fedsim.figures import COLOURS, styled
from fedsim.inspect_data.charts import label_charts, user_chart
from fedsim.inspect_data.measure import measure_labels
from fedsim.printable import printable
from fedsim.report.gather import Group

_MOST = 4  # partitions that are drawn


def partition_charts(group: Group, suffix: str) -> tuple[list[Chart], str]:
    """Draw images per user and users' divergence, for each way in which runs' images are dealt.

    Returns:
        The charts, and a sentence on what is drawn or why nothing is.
    """
    dealt: dict[str, tuple[DataConfig, list[str]]] = {}
    for entry in group.entries:
        data = DataConfig.model_validate(entry.config["data"])
        key = json.dumps(data.model_dump(include={"source", "partition"}, mode="json"))
        dealt.setdefault(key, (data, []))[1].append(entry.name)
    charts: list[Chart] = []
    sentences = []
    for number, (data, names) in enumerate(list(dealt.values())[:_MOST], start=1):
        own = f"{suffix}_{number}" if len(dealt) > 1 else suffix
        partition = _name_of(data)
        whose = "all settings" if len(dealt) == 1 else ", ".join(names[:8])
        try:
            found = _charts(data, own)
        except FedsimError as error:
            sentences.append(f"The data of {whose} can't be drawn: {error}.")
        else:
            charts += [_named(chart, partition) for chart in found]
            sentences.append(f"Dealt {partition}: {whose}.")
    if len(dealt) > _MOST:
        sentences.append(f"{len(dealt) - _MOST} more ways of dealing are not drawn.")
    return charts, " ".join(sentences)


def _charts(data: DataConfig, suffix: str) -> list[Chart]:
    index = open_images(data).index
    measures = measure_labels(index, data.labels, seed=0)
    drawn = {chart.name: chart for chart in label_charts(measures, index)}
    wanted = (f"{data.labels}_{what}" for what in ("divergence", "frequency"))
    labels = [drawn[name] for name in wanted if name in drawn]
    return [
        dataclasses.replace(chart, name=f"data_{chart.name}{suffix}")
        for chart in (user_chart(index), *labels)
    ]


def _name_of(data: DataConfig) -> str:
    """Return a partition in words, like "dirichlet, alpha 0.1, labels coarse, seed 0"."""
    settings = data.partition.model_dump()
    method = settings.pop("method").replace("_", " ")
    return ", ".join([method, *(f"{name} {value}" for name, value in sorted(settings.items()))])


def _named(chart: Chart, partition: str) -> Chart:
    """Name the partition in a figure, and where its title stands by itself."""
    axes = chart.figure.axes[0]
    with styled():
        axes.set_title(
            printable(f"dealt {partition}", 60), loc="right", fontsize=7.2, fontweight="normal",
            color=COLOURS["muted"], pad=2,
        )  # fmt: skip
    return dataclasses.replace(chart, title=f"{chart.title}, dealt {partition}")
