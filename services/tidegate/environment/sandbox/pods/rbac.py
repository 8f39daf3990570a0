"""The Role of environment workers in the namespace of their sandbox pods, exactly as the chart must render it.

No ``exec``: who may attach reaches the runner's stdin and stdout, and starts nothing else in a pod. A WebSocket is a
GET and needs ``get``; API servers since 1.35 ask for ``create`` as well.
"""

from tidegate.runtime.kubernetes_api import RbacRule


def rules() -> list[RbacRule]:
    """The rules. ``create`` and ``list`` cannot be bound to names."""
    return [
        RbacRule(("",), ("pods",), ("create", "delete", "get", "list")),
        RbacRule(("",), ("pods/attach",), ("create", "get")),
    ]
