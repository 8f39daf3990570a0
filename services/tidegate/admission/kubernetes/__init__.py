"""The adapter to a Kubernetes cluster that runs the actors; admission works without it.

Consumes: Pods, Deployments, the TrainingRun and the Lease, polled every few seconds (no watches: a stalled stream looks
like an idle one). Produces: the view of the cluster that scaling is decided from, deletion costs of pods, the scale of
the actors' Deployment (mode controller only), status and Events. Waits for: time. It runs in a loop of its own: no tick
of admission waits for the API server, and without access the last limits and pauses stay in force.
"""
