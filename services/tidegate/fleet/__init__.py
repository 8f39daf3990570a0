"""The fleet: a discrete-event model of the whole loop, for up to ten thousands of actors on a laptop.

Real are the decisions: the capacity law and the tasks it plans (``task_queue.state``), the limits
(``admission.state``), the choice of a batch (``core.batching``, ``core.waiting``), the learner's check before the
loss (``learner.state``), lineages and versions. Modelled as times and queues: rollouts, environments, updates, pulls of
weights, and failures.

``plan`` holds the settings of a fleet and ``modes`` makes it synchronous or asynchronous; ``draws`` draws durations,
``event_queue`` orders events, ``loop`` connects the parts (``queue``, ``actors``, ``environments``, ``store``,
``learner``, ``weights``, ``admission``), ``meters`` integrates, ``report`` summarises. ``sweep`` varies one setting;
``measured`` makes a plan of a real run. ``chaos`` injects random faults (``faults``) and checks ``invariants`` at each
tick.
"""
