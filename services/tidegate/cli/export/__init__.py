"""``tidegate export``: ``table`` defines the columns, ``command`` streams the ledger's pages into the file."""
