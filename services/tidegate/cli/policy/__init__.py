"""A trained policy in a person's hands: ``tidegate policy`` writes it to a file, ``tidegate play`` plays it."""
