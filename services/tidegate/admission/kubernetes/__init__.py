"""The way to a Kubernetes cluster: it supplies actors, and everything works without it.

Consumes: Pods, Deployments, the TrainingRun and the Lease, read anew every few seconds (no watches: a stream that
stalls looks like one on which nothing happens). Produces: the view of the cluster that scaling is decided from, ranks
of pods, the scale of the actors' Deployment (mode controller only), status and Events. Waits for: time. Its loop is its
own: no tick of admission waits for the API server, and without access the last limits and pauses hold all the same.
"""
