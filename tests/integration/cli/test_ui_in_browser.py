"""``tidegate ui`` in a headless Chromium: what a person sees, and that no text of a run becomes markup or code."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec
import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.unit.cli.run_folder import START_S, id_of, write_accounting, write_progress, write_samples
from tests.unit.cli.ui.completions import FIRST, SECOND, write_completions
from tidegate.cli.samples import SAMPLES_FILE
from tidegate.launch.run_folder import ProcessesRecord, lock, write_processes

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
# The label of the flow's node of trained trajectories.
TRAINED = (
    "return [...document.querySelectorAll('.sankey .node-label')].map((each) => each.textContent)"
    ".find((text) => text.startsWith('trained'))"
)
# A folder may have such a name, and charts read some markup in the names of their lines.
MARKUP = "<b>bold<b>"
SCRIPT = "<img src=x onerror='document.body.remove()'><script>document.body.remove()</script>"
# What follows would be shown from right to left.
TURN, SPELT = "\u202e", "⟨U+202E⟩"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    write_accounting(place / "segments")
    write_samples(place / "segments")
    write_completions(
        place / "completions", prompt=SCRIPT, completion=SCRIPT, verifier_log=f"{SCRIPT}{TURN}drawer"
    )
    write_accounting(place / MARKUP)
    return place


@pytest.fixture
def grows(place: Path) -> Iterator[Callable[[], None]]:
    """The run `live` goes on; a call is an update and a sample of it. After the test its folder is gone."""
    folder = place / "live"
    record = write_accounting(folder)
    write_samples(folder)
    held = lock(folder)
    write_processes(folder, ProcessesRecord(os.getpid(), START_S, ended=False, processes={}))
    steps = iter((3, 4))  # what waits is at most 4 versions old

    def grow() -> None:
        step = next(steps)
        write_progress(folder, record, seqs=[7 + 2 * step, 8 + 2 * step], step=step)
        last = msgspec.json.decode((folder / SAMPLES_FILE).read_bytes().splitlines()[0])
        with (folder / SAMPLES_FILE).open("ab") as file:
            file.write(b"\n" + msgspec.json.encode({**last, "in_flight": float(step)}) + b"\n")

    grow()
    yield grow
    os.close(held)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def address(place: Path) -> Iterator[str]:
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
    # A page may replace what was found before its text is read: then it is looked for again.
    WebDriverWait(browser, WAIT_S, ignored_exceptions=[StaleElementReferenceException]).until(
        lambda driver: any(text in each.text for each in driver.find_elements(By.CSS_SELECTOR, selector))
    )


def until(browser: Browser, script: str) -> Any:
    """What the script returns, once that is true."""
    return WebDriverWait(browser, WAIT_S).until(lambda driver: driver.execute_script(f"return {script}"))


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
    notes = [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".note")]
    assert any("Bottleneck: actor" in note and "while it last trained" in note for note in notes)
    assert any("It has no summary" in note for note in notes), "its supervisor was killed"
    assert complaints(browser) == []


def test_texts_of_a_run_stay_text(browser: Browser, address: str) -> None:
    open_page(browser, address, f"run/completions/trajectory/{FIRST}")
    wait_for(browser, ".legend", text="0-aaaa@1")
    shown = browser.find_element(By.TAG_NAME, "main").text
    assert shown.count(SCRIPT) >= 2, "the prompt and the verifier's log"
    assert f"{SCRIPT}{SPELT}drawer" in shown
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


def test_names_of_runs_are_text_in_a_chart_too(browser: Browser, address: str) -> None:
    names = f"run={quote(MARKUP)}&run=segments"
    open_page(browser, address, f"compare?{names}")
    until(browser, "document.querySelectorAll('.legendtext').length >= 2")
    shown = {
        each.get_attribute("textContent") for each in browser.find_elements(By.CSS_SELECTOR, ".legendtext")
    }
    assert shown == {MARKUP, "segments"}
    titles = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "figure h2")]
    assert titles[:3] == ["mean return", "lag max", "lag mean"]
    assert complaints(browser) == []


def test_list_asks_for_no_charts(browser: Browser, address: str) -> None:
    browser.get_log("performance")
    open_page(browser, address)
    wait_for(browser, "tr[data-open]")
    assert not any("plotly" in entry["message"] for entry in browser.get_log("performance"))


def test_group_is_shown_side_by_side(browser: Browser, address: str) -> None:
    open_page(browser, address, f"run/completions/trajectory/{FIRST}")
    wait_for(browser, "section h2", text="Group of 2, mean reward 0.625")
    this, other = browser.find_elements(By.CSS_SELECTOR, ".member")
    assert this.get_attribute("aria-current") == "true"
    assert SCRIPT in this.text
    assert "reward 0.25" in other.text
    browser.find_element(By.TAG_NAME, "body").send_keys("j")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for(browser, "h1", text=SECOND)


def test_tokens_are_coloured_by_likelihood_or_by_the_gap_to_the_learner(
    browser: Browser, address: str
) -> None:
    open_page(browser, address, "run/completions")
    wait_for(browser, "summary", text="Where learner and actors disagree most")
    shades = "[...document.querySelectorAll('.words > [title]')].map((each) => each.style.backgroundColor)"
    open_page(browser, address, f"run/completions/trajectory/{FIRST}")
    wait_for(browser, ".legend", text="the less likely the policy was")
    by_likelihood = until(browser, shades)
    Select(browser.find_element(By.CSS_SELECTOR, ".legend select")).select_by_visible_text(
        "gap to the learner"
    )
    wait_for(browser, ".legend", text="0-aaaa@2, at most 0.5 nats")
    by_gap = until(browser, shades)
    assert by_likelihood != by_gap
    assert ("45%" in by_gap[1], "23%" in by_gap[2], " 0%" in by_gap[0]) == (True, True, True), by_gap
    assert complaints(browser) == []
    open_page(browser, address, f"run/completions/trajectory/{SECOND}")
    wait_for(browser, ".legend", text="the less likely the policy was")
    assert browser.find_elements(By.CSS_SELECTOR, ".legend select") == []


def test_update_of_a_live_run_takes_no_selection_and_no_zoom(
    browser: Browser, address: str, grows: Callable[[], None]
) -> None:
    open_page(browser, address, "run/live")
    wait_for(browser, "figure h2", text="Ledger")
    wait_for(browser, ".card", text="4 updates")
    area = browser.find_element(By.CSS_SELECTOR, ".chart .nsewdrag")
    ActionChains(browser).drag_and_drop_by_offset(area, 90, 0).perform()
    browser.execute_script("window.zoomed = document.querySelector('.chart')")
    until(browser, "zoomed.layout.xaxis.autorange === false")
    shown = browser.execute_script("return zoomed.layout.xaxis.range")
    browser.execute_script(
        "getSelection().selectAllChildren(document.querySelector('.note b').parentElement)"
    )
    selected = until(browser, "String(getSelection())")
    grows()
    wait_for(browser, ".card", text="5 updates")
    until(browser, "zoomed.data[0].y.length === 5")
    assert browser.execute_script("return String(getSelection())") == selected
    assert browser.execute_script("return zoomed.layout.xaxis.range") == shown
    assert complaints(browser) == []


def test_flow_of_a_live_run_follows_it(browser: Browser, address: str, grows: Callable[[], None]) -> None:
    open_page(browser, address, "run/live")
    wait_for(browser, "figure h2", text="Ledger")
    before = browser.execute_script(TRAINED)
    grows()
    until(browser, f"({TRAINED.removeprefix('return ')}) !== '{before}'")


def test_list_follows_the_runs_and_keeps_what_was_chosen(
    browser: Browser, address: str, grows: Callable[[], None]
) -> None:
    open_page(browser, address)
    wait_for(browser, "tr[data-open$='live']", text="running")
    box = browser.find_element(By.CSS_SELECTOR, "input[value=live]")
    box.click()
    browser.execute_script("document.querySelector(\"tr[data-open$='live']\").focus()")
    before = browser.find_element(By.CSS_SELECTOR, "tr[data-open$='live']").text
    grows()
    WebDriverWait(browser, WAIT_S).until(
        lambda driver: driver.find_element(By.CSS_SELECTOR, "tr[data-open$='live']").text != before
    )
    assert box.is_selected()
    assert browser.switch_to.active_element.get_attribute("data-open").endswith("live")


def test_address_that_was_cut_is_one_sentence(browser: Browser, address: str) -> None:
    open_page(browser, address, "run/%E0%A4%A")
    wait_for(browser, ".note.bad", text="There is no run")


def test_button_and_key_open_the_list_of_keys(browser: Browser, address: str) -> None:
    open_page(browser, address)
    wait_for(browser, "tr[data-open]")
    browser.find_element(By.ID, "keys").click()
    assert browser.find_element(By.ID, "help").is_displayed()
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not browser.find_element(By.ID, "help").is_displayed()
    browser.find_element(By.TAG_NAME, "body").send_keys("?")
    assert browser.find_element(By.ID, "help").is_displayed()
