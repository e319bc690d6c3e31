"""The benchmark command over all packages: the smoke budget, resume without computing, and the report in a browser."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from conftest import packages

from icml25.shared import registry

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@dataclass(frozen=True)
class Run:
    """A working folder in which the command runs with a cache of its own."""

    folder: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"ICML25_CACHE": str(self.folder / "cache"), "COLUMNS": "200", "NO_COLOR": "1"}
        environment.pop("OMP_NUM_THREADS", None)
        command = [sys.executable, "-m", "icml25.shared.cli", *arguments]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    @property
    def report(self) -> Path:
        return self.folder / "icml25-results" / "report.html"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    run = Run(tmp_path_factory.mktemp("smoke"))
    done = run("run")
    assert done.returncode == 0, done.stdout + done.stderr
    return run, done.stdout


def test_every_package_is_on_a_leaderboard(smoke: tuple[Run, str]) -> None:
    run, output = smoke
    for package in packages():
        for track in registry.methods()[package.name].solvers:
            table = pd.read_parquet(run.folder / "icml25-results" / "smoke" / track / f"{package.name}.parquet")
            assert len(table) and (table["seconds"] > 0).all()
            assert registry.tracks()[track].title in output
    assert "Claims" in output and "Report: icml25-results/report.html" in output


def test_again_computes_nothing(smoke: tuple[Run, str]) -> None:
    run, output = smoke
    again = run("run")
    assert again.returncode == 0
    assert "\n0 units computed" in again.stdout

    def tables(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(("│", "┃"))]

    assert tables(again.stdout) == tables(output)


def test_list_names_every_package() -> None:
    done = subprocess.run(
        ["icml25", "list"], capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"}
    )
    for package in packages():
        assert re.search(rf"│ {package.name} +│ (torch|jax|numpy) ", done.stdout)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update"]
    for flag in [*flags, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


@pytest.mark.parametrize("width", [390, 1280])
def test_report_opens_without_errors_and_without_network(smoke: tuple[Run, str], browser, width: int) -> None:
    run, _ = smoke
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.get_log("performance")
    browser.get(run.report.as_uri())
    assert browser.get_log("browser") == []
    asked = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert not [message for message in asked if re.search(r'"url":"(?!file:|data:)', message)]
    assert browser.find_elements("css selector", "figure svg")
    headings = [heading.text for heading in browser.find_elements("css selector", "h3")]
    for package in packages():
        assert any(heading.startswith(f"{package.name}:") for heading in headings)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
