"""Values and decisions. Pure: no IO, clock or randomness; the caller passes times and draws."""
