"""Texts of others that may be no UTF-8."""


def encodable(text: str) -> str:
    """The text with a question mark for each lone surrogate, of which neither messages nor databases take one.

    A file name that is no UTF-8 has some (``os.fsdecode``), and with it the error that names the file.
    """
    return text if text.isascii() else text.encode(errors="replace").decode()
