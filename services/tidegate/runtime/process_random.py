"""The random numbers of this package in a process: pauses of retries, ids of messages.

A generator of its own: a simulation seeds it, and threads of libraries draw from that of the module ``random``.
"""

import os
import random

GENERATOR = random.Random()
# Services that are forked from one process must neither come back in step nor give the same ids.
os.register_at_fork(after_in_child=GENERATOR.seed)
