"""All conversations by name: the one place that a new one is added to."""

from tidegate.environment.conversations.port import ConversationTask

CONVERSATIONS: dict[str, ConversationTask] = {}
