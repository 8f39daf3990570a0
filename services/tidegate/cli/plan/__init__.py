"""``tidegate plan``: predicted rate and cost of a platform, from options or from the measurements of a run."""
