"""Several processes that train one policy: rank 0 is the service, the others compute for it and talk to nobody else.

``group`` is what they say to each other, ``share`` who computes which rows, ``messages`` what rank 0 sends, ``leading``
and ``following`` the two sides, ``membership`` which side this process is on. ``main`` of the room puts it together.
"""
