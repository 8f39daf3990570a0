"""What others copy of a service: a backup its files as of one moment, a page its records."""
