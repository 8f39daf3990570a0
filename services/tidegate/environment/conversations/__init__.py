"""Conversations, one file each: problems, and episodes of several turns about them.

A new one is a file here with a class that fulfils ``port.ConversationTask``, and one line in ``registry``.
"""
