"""What figures show, and that they are the same everywhere, safe, and readable."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from fedsim.chart import Chart, inline_svg, save
from fedsim.figures import (
    COLOURS,
    SERIES,
    PictureRow,
    bar_figure,
    heat_map,
    line_figure,
    picture_sheet,
)

STYLE_SHEET = Path(__file__).parents[1] / "fedsim" / "page" / "style.css"
UNUSED = {f"series-{number}" for number in range(3, len(SERIES) + 1)}
HOSTILE = '$x_$ </text><script>alert("id=")</script> \x1b[31m \x00 日本 url(#a)'


def lines_chart(name: str = "lines", title: str = "Lines") -> Chart:
    series = {
        "rising": (np.array([1, 10, 1000]), np.array([0.5, 5.0, 50.0])),
        HOSTILE: (np.array([1, 2]), np.array([2.0, 1.0])),
    }
    figure = line_figure(title, series, x="images", y="% of users", log=True)
    return Chart(name, title, "A caption.", figure)


def heat_chart(name: str = "heat") -> Chart:
    values = np.array([[np.nan, 25.0], [100.0, np.nan]])
    figure = heat_map("Heat", ["a", HOSTILE], values, x="x", y="y", scale="%")
    return Chart(name, "Heat", "A caption.", figure)


def sheet_chart() -> Chart:
    red = np.full((6, 4, 3), (200, 10, 20), dtype=np.uint8)
    rows = [
        PictureRow(("ann", "train"), [red, 255 - red], [("cat",), ("dog", HOSTILE)]),
        PictureRow((HOSTILE,), [red], [()]),
    ]
    return Chart("sheet", "Sheet", "A caption.", picture_sheet("Sheet", rows, 2))


def test_lines_go_through_the_values() -> None:
    (axes,) = lines_chart().figure.axes
    rising, other = axes.lines
    assert rising.get_xydata().tolist() == [[1, 0.5], [10, 5], [1000, 50]]
    assert (rising.get_color(), other.get_color()) == SERIES[:2]
    assert rising.get_linestyle() != other.get_linestyle()
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert {"1", "10", "1,000"} <= set(labels)


def test_bars_are_as_long_as_the_values() -> None:
    lengths = {"train": np.array([30.0, 2.0, 0.0]), "val": np.array([10.0, 4.0, 1.0])}
    (axes,) = bar_figure("Bars", ["a", "b", "c"], lengths, x="%").axes
    for bars, values in zip(axes.containers, lengths.values(), strict=True):
        assert [bar.get_width() for bar in bars] == values.tolist()
        places = [round(bar.get_y() + bar.get_height() / 2) for bar in bars]
        assert places == [0, 1, 2]
    assert axes.yaxis_inverted()
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b", "c"]


def test_heat_is_stronger_where_the_value_is_larger() -> None:
    axes, scale = heat_chart().figure.axes
    (mesh,) = axes.collections
    mesh.update_scalarmappable()
    empty, quarter, full, other_empty = mesh.get_facecolor().tolist()
    assert quarter[:3] == full[:3] == pytest.approx(to_rgb(SERIES[0]))
    assert quarter[3] == pytest.approx(0.5, abs=0.01)  # the square root of a quarter
    assert full[3] == 1
    assert empty == other_empty == pytest.approx([*to_rgb(COLOURS["rule"]), 1])
    assert scale.get_ylabel() == "%"


def test_pictures_are_shown_as_they_are() -> None:
    chart = sheet_chart()
    images = [image for axes in chart.figure.axes for image in axes.images]
    assert [np.asarray(image.get_array())[0, 0].tolist() for image in images] == [
        [200, 10, 20],
        [55, 245, 235],
        [200, 10, 20],
    ]


@pytest.mark.parametrize("make", [lines_chart, heat_chart, sheet_chart])
def test_files_are_the_same_each_time_and_parse(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        save(make(), tmp_path / folder)
    name = make().name
    for suffix in ("png", "svg"):
        one, two = ((tmp_path / k / f"{name}.{suffix}").read_bytes() for k in ("one", "two"))
        assert one == two
        assert b"Matplotlib" not in one
        assert b"dc:date" not in one
    tree = ElementTree.parse(tmp_path / "one" / f"{name}.svg")
    tags = {element.tag.split("}")[1] for element in tree.iter()}
    assert "script" not in tags
    words = " ".join("".join(element.itertext()) for element in tree.iter())
    assert "\x1b" not in words
    with Image.open(tmp_path / "one" / f"{name}.png") as image:
        assert image.width >= 700
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
        assert len(image.convert("RGB").getcolors(2**24)) > 20


def test_text_stays_text() -> None:
    svg = inline_svg(heat_chart())
    assert ">$x_$ &lt;/text&gt;&lt;scri…</text>" in svg
    assert 'aria-label="Heat"' in svg


def test_charts_on_a_page_have_ids_of_their_own_and_the_pages_colours() -> None:
    page = "".join(
        inline_svg(chart) for chart in (lines_chart("a"), lines_chart("b"), heat_chart())
    )
    tags = " ".join(re.findall(r"<[^>]*>", page))
    ids = re.findall(r'\bid="([^"]*)"', tags)
    assert len(ids) == len(set(ids)) > 50
    used = re.findall(r'(?:url\(#|href="#)([^")]*)', tags)
    assert used
    assert set(used) <= set(ids)
    assert "<style" not in page
    for name, value in COLOURS.items():
        assert value not in tags
        assert (f"var(--{name})" in tags) == (name not in UNUSED)
    assert "fill: #ffffff" not in tags  # it would be a white sheet on a dark page


def test_drawing_leaves_no_trace() -> None:
    before = dict(mpl.rcParams)
    inline_svg(lines_chart())
    assert dict(mpl.rcParams) == before
    code = "import sys, fedsim.page.render; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_colours_are_told_from_the_paper_in_light_in_dark_and_in_print() -> None:
    sheets = [
        dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root \{(.*?)\}", STYLE_SHEET.read_text(), flags=re.DOTALL)
    ]
    light, dark, printed = sheets
    assert {name: light[name] for name in COLOURS} == COLOURS
    assert luminance(dark["paper"]) < 0.02
    for sheet in (light, dark, printed):
        assert contrast(sheet["ink"], sheet["paper"]) > 12
        for paper in ("paper", "raised"):
            assert contrast(sheet["muted"], sheet[paper]) > 4.5
        for number in range(1, len(SERIES) + 1):
            assert contrast(sheet[f"series-{number}"], sheet["paper"]) > 3
