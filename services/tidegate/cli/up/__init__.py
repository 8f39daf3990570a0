"""``tidegate up``: one machine, a broker, every service as a process of its own, and a supervisor above them.

Consumes a run file and the statistics of every service; produces a run folder with a summary and a report; waits for
the target of the run; unblocked by the services, the clock, or a signal.
"""
