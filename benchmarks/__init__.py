"""``make bench``: the platform beside plain peers, as ratios with the raw numbers beside them.

Each bench is a file here and a line in ``registry``; what it measures against is a program in ``peers``. The machine
may be shared, so sides alternate, every figure is a median with its range, and CPU time of the whole process tree
is beside wall time: work per CPU-second hardly moves when other programs compute too.
"""
