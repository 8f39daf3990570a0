"""Vectorised Gymnasium environments as actors step them and as the environment service describes them.

``opening`` opens them as the run file configures them, ``guarded`` keeps the fault of one copy from the others,
``spaces`` and ``describing`` turn them into plain values. No torch; Gymnasium is imported once one is opened.
"""
