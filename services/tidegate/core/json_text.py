"""Texts of others that may be JSON."""

from typing import Final

import msgspec

# All that decoding a text raises which is no JSON, is none of the wanted type, or is nested deeper than it can be read.
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
