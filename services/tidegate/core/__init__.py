"""Values and decisions. Nothing here does IO, reads a clock or draws a random number: those are arguments."""
