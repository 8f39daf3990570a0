"""The sandbox for model-written code (I11).

Tools and verifiers use ``port``; ``linux`` implements it. A zygote process in an empty file tree forks each run into
separate namespaces, behind a filter of system calls. At the start a test program tries to break out, so that missing
isolation is an error and never a weaker sandbox.
"""
