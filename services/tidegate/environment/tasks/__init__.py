"""Text tasks, one file each: problems with known answers, a verifier, and demonstrations for a warm-up.

A new task is one file here with a class that fulfils ``port.TextTask``, and one line in ``registry``.
"""
