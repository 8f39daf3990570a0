"""A chart of the report's page."""

import msgspec


class Plot(msgspec.Struct, frozen=True):
    """One chart; ``svg`` is empty where the run has no data for it."""

    title: str
    caption: str
    svg: str
