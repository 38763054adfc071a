"""Pages opened in Chromium, on a phone and on a desk."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsim.cli import app

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs Chromium, chromedriver"),
]
FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
    "disable-background-networking", "disable-component-update", "disable-sync",
)  # fmt: skip
Driver = Any


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = Path(__file__).parent / "report"
    sys.path.insert(0, str(folder))
    try:
        from recorded_runs import write_trial
    finally:
        sys.path.remove(str(folder))
    runs = write_trial(tmp_path_factory.mktemp("runs"))
    inspected = tmp_path_factory.mktemp("inspected")
    for command in (
        ["report", str(runs)],
        ["data", "inspect", "--labels", "coarse", "--out", str(inspected)],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    return {"report": runs / "report" / "index.html", "inspect": inspected / "index.html"}


def show(driver: Driver, page: Path, width: int, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get_log("browser")  # forget other pages'
    driver.get(page.as_uri())


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize(("name", "figures"), [("report", 12), ("inspect", 5)])
def test_nothing_overflows_is_missing_or_complains(
    driver: Driver, pages: dict[str, Path], name: str, figures: int, width: int
) -> None:
    show(driver, pages[name], width)
    sizes = driver.execute_script(
        "return Array.from(document.querySelectorAll('figure svg'), (svg) => {"
        " const box = svg.getBoundingClientRect(); return [box.width, box.height]; })"
    )
    assert len(sizes) == figures
    assert min(min(size) for size in sizes) > 100
    scroll, inner = driver.execute_script(
        "return [document.scrollingElement.scrollWidth, innerWidth]"
    )
    assert scroll <= inner == width
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("name", ["report", "inspect"])
def test_dark_is_dark(driver: Driver, pages: dict[str, Path], name: str) -> None:
    found = []
    for scheme in ("light", "dark"):
        show(driver, pages[name], 1400, scheme)
        found.append(
            driver.execute_script(
                "return [getComputedStyle(document.documentElement).backgroundColor,"
                " getComputedStyle(document.querySelector('figure svg text')).fill]"
            )
        )
    (paper, ink), (dark_paper, dark_ink) = found
    assert paper == "rgb(255, 255, 255)"
    assert dark_paper == "rgb(22, 24, 28)"
    assert ink != dark_ink


def column(driver: Driver, table: str, number: int) -> list[str]:
    cells = f"document.querySelectorAll('#{table} tbody tr td:nth-child({number})')"
    texts: list[str] = driver.execute_script(f"return Array.from({cells}, (c) => c.textContent)")
    return texts


def test_a_click_on_a_head_sorts_the_table(driver: Driver, pages: dict[str, Path]) -> None:
    show(driver, pages["report"], 1400)
    heads = driver.find_elements("css selector", "#table-comparison th button")
    heads[0].click()
    names = column(driver, "table-comparison", 1)
    assert names == sorted(names, key=str.lower)
    heads[2].click()
    falling = [float(text) for text in column(driver, "table-comparison", 3)]
    assert falling == sorted(falling, reverse=True)
    assert len(falling) == 6
    heads[2].click()
    assert [float(t) for t in column(driver, "table-comparison", 3)] == falling[::-1]


def test_two_settings_are_chosen(driver: Driver, pages: dict[str, Path]) -> None:
    show(driver, pages["report"], 1400)

    def drawn() -> list[str]:
        texts: list[str] = driver.execute_script(
            "return Array.from(document.querySelectorAll('.pairs .point title'), "
            "(title) => title.textContent)"
        )
        return texts

    before = drawn()
    assert len(before) == 3
    selects = driver.find_elements("css selector", ".pairs select")
    names = [option.text for option in selects[1].find_elements("css selector", "option")]
    place = names.index("centralized")
    selects[1].find_elements("css selector", "option")[place].click()
    after = drawn()
    assert after != before
    for title in after:
        first, second = (
            float(part) for part in title.split(": ")[1].split(" (")[0].split(", then ")
        )
        assert 0 <= first <= 100
        assert 0 <= second <= 100
    selects[1].find_elements("css selector", "option")[names.index("plain")].click()
    assert all("(0.0)" in title for title in drawn())
    assert driver.get_log("browser") == []


def test_without_scripts_the_figure_is_there(driver: Driver, pages: dict[str, Path]) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(driver, pages["report"], 1400)
        figure = driver.find_element("css selector", ".pairs svg")
        assert figure.size["height"] > 100
        assert not driver.find_element("css selector", ".choice").is_displayed()
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
