"""``report.html``: one file that fetches nothing, from the files of a run folder."""
