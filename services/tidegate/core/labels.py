"""Names that become part of a counter's name: as many as fit, and one for the rest."""

LABELS_MAX = 64
LABEL_CHARACTERS_MAX = 48
OTHER_LABEL = "other"


class Labels:
    """The first ``LABELS_MAX`` names seen keep their own label, later ones share ``other``; never freed."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def of(self, name: str) -> str:
        """The label of a name, at most ``LABEL_CHARACTERS_MAX`` long."""
        label = name[:LABEL_CHARACTERS_MAX]
        if label not in self._seen:
            if len(self._seen) >= LABELS_MAX:
                return OTHER_LABEL
            self._seen.add(label)
        return label
