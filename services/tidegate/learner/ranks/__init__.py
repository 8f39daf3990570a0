"""Several processes that train one policy: rank 0 is the service, the other ranks compute for it alone.

``group``: the collective operations; ``share``: which rank computes which rows; ``messages``: the commands of rank 0;
``leading`` and ``following``: the two sides; ``membership``: this process' rank. ``learner.main`` assembles them.
"""
