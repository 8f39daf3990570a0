"""The style sheet of the report and of the page, whose image has none of the libraries that draw a report."""

from pathlib import Path

STYLE_FILE = Path(__file__).with_name("style.css")
