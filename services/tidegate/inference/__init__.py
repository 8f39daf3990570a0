"""Inference: acts for all actors of a run, so that only one process computes the network.

consumes: steps of actors with the engine ``inference_env``, one stream each; policy versions
produces: actions with their logprobs, the state of policies with memory, and the version that acted
waits for: a policy; a step; for a moment, the steps of other actors, to answer all of them by one call of the network
unblocked by: weight distribution; actors; time
keeps: nothing between two steps. Environments, segments and memory are the actors', so that a new process goes on where
the last one stopped. A run has one instance, which is started again when it ends; actors wait for it meanwhile.
"""
