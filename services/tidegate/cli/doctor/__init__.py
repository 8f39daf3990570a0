"""``tidegate doctor``: what this machine has (``command``), and with ``--smoke`` a short run on it (``smoke``)."""
