"""``tidegate export``: ``table`` says what a row is, ``command`` streams the ledger's pages into the file."""
