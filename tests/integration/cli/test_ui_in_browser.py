"""``tidegate ui`` in a headless Chromium: what a person sees, and that no text of a run becomes markup or code."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.unit.cli.run_folder import id_of, write_accounting, write_samples
from tests.unit.cli.ui.completions import FIRST, write_completions

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="needs Debian's packages chromium and chromium-driver"
    ),
]
# A webdriver.Chrome, whose methods are typed in part.
Browser: TypeAlias = Any

WAIT_S = 60.0
SCRIPT = "<img src=x onerror='document.body.remove()'><script>document.body.remove()</script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("runs")
    write_accounting(place / "segments")
    write_samples(place / "segments")
    write_completions(place / "completions", prompt=SCRIPT, completion=SCRIPT, verifier_log=SCRIPT)
    command = [sys.executable, "-m", "tidegate.cli.main", "ui", str(place), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[0]
        finally:
            process.terminate()
            assert process.wait(timeout=WAIT_S) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(argument)  # the sandbox needs a user that is not root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=Service(DRIVER)) as driver:
        yield driver


def open_page(browser: Browser, address: str, route: str = "") -> None:
    browser.get("about:blank")
    browser.get(f"{address}#/{route}")


def wait_for(browser: Browser, selector: str, *, text: str = "") -> None:
    WebDriverWait(browser, WAIT_S).until(
        lambda driver: any(text in each.text for each in driver.find_elements(By.CSS_SELECTOR, selector))
    )


def complaints(browser: Browser) -> list[str]:
    """What the console holds: errors of scripts, and what the content security policy refused."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_overview_draws_each_curve_and_the_flow_without_a_complaint(browser: Browser, address: str) -> None:
    open_page(browser, address, "run/segments")
    wait_for(browser, "figure h2", text="Ledger")
    WebDriverWait(browser, WAIT_S).until(
        lambda driver: len(driver.find_elements(By.CSS_SELECTOR, ".chart .main-svg")) >= 10
    )
    titles = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "figure h2")]
    assert titles[:3] == ["mean return", "Lag", "clipped fraction"]
    assert {"Ledger", "In flight", "Rates"} <= set(titles)
    assert "Bottleneck: actor" in browser.find_element(By.CSS_SELECTOR, ".note").text
    assert complaints(browser) == []


def test_texts_of_a_run_stay_text(browser: Browser, address: str) -> None:
    open_page(browser, address, f"run/completions/trajectory/{FIRST}")
    wait_for(browser, ".legend", text="0-aaaa@1")
    shown = browser.find_element(By.TAG_NAME, "main").text
    assert shown.count(SCRIPT) >= 2, "the prompt and the verifier's log"
    assert "null" not in shown
    assert "undefined" not in shown
    assert browser.find_elements(By.CSS_SELECTOR, "main img, main script") == []
    tokens = browser.find_elements(By.CSS_SELECTOR, ".words span")
    assert [token.text for token in tokens] == ["2", "3", "4", "⏎end"]
    assert [token.get_attribute("class") for token in tokens] == ["v0", "v0", "v1", "v1"]
    assert complaints(browser) == []


def test_keys_lead_from_the_runs_to_a_trajectory(browser: Browser, address: str) -> None:
    open_page(browser, address)
    wait_for(browser, "tr[data-open]")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys("j")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for(browser, "nav a[aria-current]", text="Overview")
    body.send_keys("gt")
    wait_for(browser, "nav a[aria-current]", text="Trajectories")
    wait_for(browser, "tr[data-open]")
    body.send_keys("/")
    assert browser.switch_to.active_element.get_attribute("name") == "state"
    assert complaints(browser) == []


def test_enter_follows_a_link_and_presses_a_button(browser: Browser, address: str) -> None:
    open_page(browser, address, "run/segments/trajectories")
    wait_for(browser, "tr[data-open]")
    browser.find_element(By.CSS_SELECTOR, "tr[data-open] a").send_keys(Keys.ENTER)
    wait_for(browser, "dl.facts dt", text="outcome")
    browser.find_element(By.CSS_SELECTOR, "#sections a").send_keys(Keys.ENTER)
    wait_for(browser, "h1", text="Runs")
    for box in browser.find_elements(By.CSS_SELECTOR, "main input"):
        box.click()
    browser.find_element(By.CSS_SELECTOR, "main header button").send_keys(Keys.ENTER)
    wait_for(browser, "h1", text="Comparison")
    assert complaints(browser) == []


def test_answer_that_is_late_replaces_no_page_that_was_opened_after_it(
    browser: Browser, address: str
) -> None:
    open_page(browser, address)
    wait_for(browser, "tr[data-open]")
    browser.execute_script(
        "const ask = fetch; window.fetch = async (path) => {"
        " const answer = await ask(path);"
        " if (path.endsWith('/curves')) await new Promise((go) => (window.arrive = go));"
        " return answer; };"
        "location.hash = '#/run/segments';"
    )
    WebDriverWait(browser, WAIT_S).until(lambda driver: driver.execute_script("return !!window.arrive"))
    browser.execute_script("location.hash = '#/run/segments/versions'")
    wait_for(browser, "h1", text="Versions")
    browser.execute_script("window.arrive()")
    wait_for(browser, "h1", text="Versions")
    assert browser.find_elements(By.CSS_SELECTOR, ".cards") == []


def test_filter_and_update_lead_to_what_they_name(browser: Browser, address: str) -> None:
    open_page(browser, address, "run/segments/versions")
    wait_for(browser, "tr[data-open]", text="0-aaaa@2")
    browser.find_element(By.CSS_SELECTOR, "tr[data-open]").click()
    wait_for(browser, "h1", text="Trajectories")
    wait_for(browser, "tr[data-open]", text=id_of(5))
    assert len(browser.find_elements(By.CSS_SELECTOR, "tr[data-open]")) == 2
    assert complaints(browser) == []


@pytest.mark.parametrize("route", ["", "run/segments", "run/segments/trajectories", "run/segments/versions"])
def test_page_fits_the_width_of_a_phone(browser: Browser, address: str, route: str) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        open_page(browser, address, route)
        wait_for(browser, "h1")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_page_has_a_dark_form(browser: Browser, address: str) -> None:
    def background() -> str:
        open_page(browser, address)
        wait_for(browser, "h1", text="Runs")
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = background()
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    try:
        assert background() != light
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_page_asks_no_other_host(browser: Browser, address: str) -> None:
    browser.get_log("performance")
    open_page(browser, address, "run/segments")
    wait_for(browser, "figure h2", text="Ledger")
    asked = [
        entry["message"]
        for entry in browser.get_log("performance")
        if "requestWillBeSent" in entry["message"]
    ]
    urls = [part.split('"')[0] for message in asked for part in message.split('"url":"')[1:]]
    assert any(url.startswith(address) for url in urls)
    assert [url for url in urls if not url.startswith((address, "data:", "about:"))] == []
