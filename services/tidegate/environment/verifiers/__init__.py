"""Further verifiers, one file each: a judge behind an OpenAI-style API, a classifier in a child process.

A new one is a file here with a class that fulfils ``port.Verifier``, its settings, and one line in ``registry``.
"""
