"""Own code of a user: how a run file names it, where it is found, how it is loaded, and its digest.

``references`` reads names and files without running anything, ``loading`` runs the code, ``digests`` tells versions
of it apart.
"""
