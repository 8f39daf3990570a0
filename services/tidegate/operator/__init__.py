"""The operator of many runs: it makes the Helm release of each TrainingRun that has a run file, and removes it again.

Consumes: TrainingRuns and the workloads of their releases, polled every few seconds (no watches, as admission does
it). Produces: releases by ``helm upgrade --install`` as a child process, numbers of pods while a run is suspended,
the order in which an upgrade restarts the services, status and Events. ``decisions`` is pure: what was observed in,
actions out. Everything else here carries them out.
"""
