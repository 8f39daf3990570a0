"""The sandbox for model-written code (I11).

``port`` is what tools and verifiers use; ``linux`` fulfils it. A keeper process in an empty tree of files forks each
run into namespaces of its own, behind a filter of system calls. At the start it tries to break out of itself, so that
isolation that is not to be had is an error and never a weaker sandbox.
"""
