"""Fixtures of the tests of other libraries' environments."""

import sys

import pytest

from tests.unit.environment.libraries.fakes import Library


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """In the place of `verifiers`, whether that is installed or not."""
    library = Library()
    monkeypatch.setitem(sys.modules, "verifiers", library)
    monkeypatch.setitem(sys.modules, "verifiers.clients", library)
    return library
