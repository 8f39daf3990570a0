"""A user's curriculum: code that weighs the bins of the dataset, in a child process that can be killed.

A process and no thread: Python cannot end a thread, and one that computes or holds the interpreter's lock would stand
the event loop still, on which every admission waits. ``child`` is that process and ``code`` what it loads, ``process``
asks it, and ``loop`` gives its answers to the queue, which never waits for one once it began.
"""
