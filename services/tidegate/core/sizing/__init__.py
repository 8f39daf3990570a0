"""What a language model costs before anything is paid for: memory, rate, bytes of a version, disk. No IO, no clock.

``shapes`` the sizes of a model, by name or from its config; ``accelerators`` the GPUs; ``learner`` and ``rollouts``
memory and rate of one GPU of each; ``versions`` bytes and seconds of a version at each hop, and disk; ``plan`` puts
them together for a number of GPUs; ``pods`` what the pods of a plan ask for; ``fitting`` and
``learner_room`` say what does not fit a machine or a learner's pods, and the nearest that does.

The formulas describe what this learner does today (every rank holds the whole model), not what others do. Each names
its source; tests compare them with measured values (issue 18).
"""
