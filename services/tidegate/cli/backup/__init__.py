"""``tidegate backup`` and ``tidegate restore``."""
