"""Layers of a user's own, as ``policy.kind: own_net.py:Net`` names them."""

from typing import Any


class Net:
    """One dense layer."""

    def shapes(self, num_inputs: int) -> dict[str, tuple[int, ...]]:
        """One matrix."""
        return {"in": (num_inputs, 8)}

    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        """Features (B, 8)."""
        return xp.tanh(inputs @ params["in"])
