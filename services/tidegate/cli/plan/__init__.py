"""``tidegate plan``: what a platform of a given size would do and cost, from flags or from what a run measured."""
