"""The fleet: the whole loop as a discrete-event simulation, ten thousand actors on a laptop.

Real are the decisions: the capacity law and the tasks it plans (``task_queue.state``), the limits
(``admission.state``), the choice of a batch (``core.batching``, ``core.waiting``), the learner's check before the
loss (``learner.state``), lineages and versions. Modelled beside them, as times and queues: rollouts, environments,
updates, pulls of weights, and who is dead.

``plan`` says what a fleet is made of and ``modes`` makes it synchronous or asynchronous; ``draws`` makes durations,
``agenda`` orders events, ``loop`` wires the parts (``queue``, ``actors``, ``environments``, ``store``, ``learner``,
``weights``, ``admission``), ``meters`` adds up, ``report`` says what came of it. ``sweep``
varies one setting and ``charts`` draws it; ``measured`` reads a real run. ``storm`` breaks everything at random
(``faults``) while ``watch`` looks on at each tick.
"""
