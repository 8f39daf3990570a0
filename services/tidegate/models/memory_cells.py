"""Recurrent cells: one step in numpy for actors, whole sequences in torch's fused kernels for the learner.

Weights are (inputs, outputs), with the gates side by side: reset, update and candidate of a GRU, input, forget,
candidate and output of an LSTM. The state of an LSTM is its output and its cell, side by side.

Shapes: B rows, F features, H units, M numbers of state (H or 2 H), R rows of packed sequences, Q sequences.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tidegate.core.records import Array
from tidegate.models.array_functions import ArrayModule
from tidegate.models.layers import orthogonal

Cell = Literal["gru", "lstm"]
NUM_GATES: dict[Cell, int] = {"gru": 3, "lstm": 4}
STATE_PARTS: dict[Cell, int] = {"gru": 1, "lstm": 2}
INPUT, RECURRENT = "memory.input", "memory.recurrent"


def cell_shapes(cell: Cell, *, num_features: int, num_units: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a cell's parameters by name."""
    outputs = NUM_GATES[cell] * num_units
    return {
        f"{INPUT}.weight": (num_features, outputs),
        f"{INPUT}.bias": (outputs,),
        f"{RECURRENT}.weight": (num_units, outputs),
        f"{RECURRENT}.bias": (outputs,),
    }


def init_cell(cell: Cell, *, num_features: int, num_units: int, rng: np.random.Generator) -> dict[str, Array]:
    """Orthogonal weights of each gate, zero biases; 1 for an LSTM's forget gate (Jozefowicz 2015), which then keeps."""
    gates = NUM_GATES[cell]
    params: dict[str, Array] = {
        name: np.zeros(shape, np.float32)
        for name, shape in cell_shapes(cell, num_features=num_features, num_units=num_units).items()
    }
    for name, num_inputs in ((INPUT, num_features), (RECURRENT, num_units)):
        weights = [orthogonal((num_inputs, num_units), rng, gain=1.0) for _ in range(gates)]
        params[f"{name}.weight"] = np.concatenate(weights, axis=1)
    if cell == "lstm":
        params[f"{INPUT}.bias"][num_units : 2 * num_units] = 1.0
    return params


def cell_step(
    cell: Cell, params: Mapping[str, Array], features_BF: Array, state_BM: Array
) -> tuple[Array, Array]:
    """Outputs (B, H) and the next state (B, M), in numpy.

    Source: Cho 2014 with the reset gate after the matrix product, as torch and cuDNN compute it; Hochreiter 1997.
    """
    num_units = params[f"{RECURRENT}.weight"].shape[0]
    from_input = features_BF @ params[f"{INPUT}.weight"] + params[f"{INPUT}.bias"]
    from_state = state_BM[:, :num_units] @ params[f"{RECURRENT}.weight"] + params[f"{RECURRENT}.bias"]
    if cell == "gru":
        gates = _sigmoid(from_input[:, : 2 * num_units] + from_state[:, : 2 * num_units])
        reset, update = gates[:, :num_units], gates[:, num_units:]
        candidate = np.tanh(from_input[:, 2 * num_units :] + reset * from_state[:, 2 * num_units :])
        output = candidate + update * (state_BM - candidate)
        return output, output
    sums = from_input + from_state
    keep = _sigmoid(sums[:, : 2 * num_units])
    write, forget = keep[:, :num_units], keep[:, num_units:]
    candidate, shown = np.tanh(sums[:, 2 * num_units : 3 * num_units]), _sigmoid(sums[:, 3 * num_units :])
    inner = forget * state_BM[:, num_units:] + write * candidate
    output = shown * np.tanh(inner)
    return output, np.concatenate([output, inner], axis=1)


def _sigmoid(values: Array) -> Any:
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * values) + np.float32(1.0))


def unrolled(
    cell: Cell,
    params: Mapping[str, Any],
    features_RF: Any,
    state_QM: Any,
    batch_sizes: Any,
    xp: ArrayModule,
) -> tuple[Any, Any]:
    """Outputs (R, H) of whole sequences from their states, and the states (Q, M) after them, in torch (``xp``).

    One fused call.

    Rows are in the order of torch's packed sequences: the first rows of all sequences, the longest first, then the
    second rows of those that have one. ``batch_sizes``: how many sequences have a row at each place, on the CPU.
    """
    weights = [
        params[f"{INPUT}.weight"].t().contiguous(),
        params[f"{RECURRENT}.weight"].t().contiguous(),
        params[f"{INPUT}.bias"],
        params[f"{RECURRENT}.bias"],
    ]
    num_units = params[f"{RECURRENT}.weight"].shape[0]
    call: Any = xp.gru if cell == "gru" else xp.lstm
    start: Any = state_QM[None].contiguous()
    if cell == "lstm":
        start = (start[..., :num_units].contiguous(), start[..., num_units:].contiguous())
    # has_biases, num_layers, dropout, train, bidirectional
    outputs, *after = call(features_RF, batch_sizes, start, weights, True, 1, 0.0, True, False)
    return outputs, xp.concatenate([part[0] for part in after], -1)
