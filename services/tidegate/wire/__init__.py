"""Records to bytes and back, the one table of subjects, and typed clients of every service."""
