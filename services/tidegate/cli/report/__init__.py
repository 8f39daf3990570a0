"""``report.html``: one file without a request to anywhere, from what a run leaves in its folder."""
