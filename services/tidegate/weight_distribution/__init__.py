"""Weight distribution: keeps the last policy versions, announces each once, and serves their tensors.

Consumes: versions that the learner publishes (``PublishPolicy``), pulls of actors (``PullPolicy``).
Produces: announcements on POLICY (compare-and-set, small policies inline), raw tensor streams.
Waits for: the learner; nothing else holds it up, and a pull never waits for a publish.
Unblocked by: the learner publishing its next version.
"""
