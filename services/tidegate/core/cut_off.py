"""What verifiers read of a completion: one that was cut off at its length is told apart from one that ended."""

# At the end of a text that was cut off, so that no verifier mistakes it for a finished answer.
CUT_OFF = "\N{HORIZONTAL ELLIPSIS}"
FINISHED_BY_LENGTH = "length"


def as_judged(completion: str, *, finish_reason: str) -> str:
    """The text that a verifier reads; records hold the completion as it is."""
    return completion + CUT_OFF if finish_reason == FINISHED_BY_LENGTH else completion
