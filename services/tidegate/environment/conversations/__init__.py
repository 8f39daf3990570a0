"""Conversations, one file each: problems, and the episodes of several turns that are held about them.

A new one is a file here with a class that fulfils ``port.ConversationTask``, and one line in ``registry``.
"""
