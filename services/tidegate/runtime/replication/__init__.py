"""A service's SQLite file, replicated to PostgreSQL: what was answered survives the loss of the node with its volume.

PostgreSQL has every table of the file, row by row. Changed rows are noted in the transaction that changes them
(``changes``) and pushed together (``database``). No answer and no message leaves the service before PostgreSQL has what
the file had when it was made (``replica``), so what only the file has was never sent to another process: a service
that starts without its file, or with that of an earlier owner, takes PostgreSQL's rows (``opening``, ``ownership``).
"""
