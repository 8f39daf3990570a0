"""Colours of the page: what is read has the contrast that WCAG 2.1 asks of text (4.5), in both forms."""

import re

import pytest

from tidegate.cli.report.style import STYLE_FILE
from tidegate.cli.ui.server import STATIC

CONTRAST_MIN = 4.5
DARK = "@media (prefers-color-scheme: dark)"
# Pairs of a text and its ground.
READ = [
    ("--ink", "--paper"),
    ("--ink", "--card"),
    ("--ink", "--grid"),
    ("--muted", "--paper"),
    ("--muted", "--card"),
    ("--quiet", "--grid"),
    ("--good", "--good-soft"),
    ("--bad", "--bad-soft"),
    ("--bad", "--card"),
    ("--link", "--paper"),
    ("--link", "--card"),
    ("--link", "--grid"),
]


def colours(*, dark: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in (STYLE_FILE, STATIC / "page.css"):
        light, _, rest = path.read_text().partition(DARK)
        found |= dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{6})", light))
        if dark:
            found |= dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{6})", rest))
    return found


def channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def luminance(colour: tuple[float, ...]) -> float:
    parts = [each / 255 for each in colour]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(text: tuple[float, ...], ground: tuple[float, ...]) -> float:
    darker, lighter = sorted((luminance(text), luminance(ground)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("text", "ground"), READ)
def test_text_can_be_read(text: str, ground: str, dark: bool) -> None:
    known = colours(dark=dark)
    assert contrast(channels(known[text]), channels(known[ground])) >= CONTRAST_MIN


@pytest.mark.parametrize("dark", [False, True])
def test_least_likely_token_can_be_read(dark: bool) -> None:
    found = re.search(r"SHADE_MAX = (\d+);", (STATIC / "trajectory.js").read_text())
    assert found is not None
    share = int(found[1]) / 100
    known = colours(dark=dark)
    shade, card = channels(known["--series-2"]), channels(known["--card"])
    ground = tuple(share * over + (1 - share) * under for over, under in zip(shade, card, strict=True))
    assert contrast(channels(known["--ink"]), ground) >= CONTRAST_MIN


def test_contrast_is_the_standard_one() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21.0)
    assert contrast(channels("#767676"), (255, 255, 255)) == pytest.approx(4.54, abs=0.01)
