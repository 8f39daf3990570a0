"""``tidegate compare``: several run files, several seeds each, on one page."""
