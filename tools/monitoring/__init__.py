"""What watches a run, generated from the catalogues of the code: rules, runbook pages and dashboards."""
