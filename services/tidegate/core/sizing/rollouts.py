"""Memory and rate of the GPUs of one actor with an inference server (vLLM), and its memory on the host.

A server may divide a model over ``tensor_parallel`` GPUs; each then holds a part of weights and cache.
"""

import msgspec

from tidegate.core.sizing.accelerators import Accelerator
from tidegate.core.sizing.learner import PROCESS_BYTES, Training

# vLLM's default share of a GPU's memory (--gpu-memory-utilization).
SERVER_SHARE = 0.9
# Activations of a prefill, CUDA graphs and the sampler's logits beside weights and cache. A guess until measured.
SERVER_WORKSPACE_BYTES = 3e9
# Share of the peak bandwidth that decoding reaches. A guess until measured.
BANDWIDTH_SHARE = 0.6
# Memory on the host of each process of a server: its front, and one for each GPU. A guess until measured.
SERVER_PROCESS_BYTES = 4e9
# Texts that a server should hold at once, below which decoding leaves the GPU idle.
TEXTS_MIN = 8
# Snapshots of a policy in an actor: the one in use, the next, and one that arrives.
SNAPSHOTS = 3
# Folders of a model for a server: the first, the one it serves, the next (``engines.server_config``).
FOLDERS = 3


class RolloutMemory(msgspec.Struct, frozen=True):
    """Bytes on one GPU of an actor. ``texts``: how many of the planned length the cache holds, on all its GPUs."""

    weights: float
    workspace: float
    cache: float
    unused: float
    texts: int

    @property
    def total(self) -> float:
        """What must fit at least: weights, workspace, and the cache of one text."""
        return self.weights + self.workspace


def cache_bytes_of_token(training: Training) -> float:
    """Keys and values of one token in all layers, in bfloat16."""
    return 4.0 * training.shape.num_layers * training.shape.kv_width


def rollout_memory(training: Training, gpu: Accelerator, *, tensor_parallel: int = 1) -> RolloutMemory:
    """Bytes on one GPU. The server holds the whole model in bfloat16, adapters merged and the head untied."""
    weights = 2.0 * training.shape.untied_parameters / tensor_parallel
    given = SERVER_SHARE * gpu.memory_bytes
    cache = max(0.0, given - weights - SERVER_WORKSPACE_BYTES)
    of_text = cache_bytes_of_token(training) * training.length / tensor_parallel
    return RolloutMemory(
        weights=weights,
        workspace=SERVER_WORKSPACE_BYTES,
        cache=cache,
        unused=gpu.memory_bytes - given,
        texts=int(cache / of_text),
    )


def rollout_rate(training: Training, gpu: Accelerator, *, tensor_parallel: int = 1) -> float:
    """Generated tokens/s of one actor while its cache is full of texts at half of their length.

    Decoding one token of every text reads all weights and the whole cache once; 0 where no text fits.
    """
    memory = rollout_memory(training, gpu, tensor_parallel=tensor_parallel)
    half = cache_bytes_of_token(training) * training.length / 2 / tensor_parallel
    texts = int(memory.cache / half) if memory.texts else 0
    step_s = (memory.weights + texts * half) / (gpu.bytes_per_s * BANDWIDTH_SHARE)
    return texts / step_s


def actor_host_bytes(training: Training) -> float:
    """Memory of an actor's process while it prepares a version for its server; the server's own is not in it.

    Snapshots in float32, the model of the probe (``actor.server.probe: local``), the merged model in float32, and its
    cast. Source: ``engines.server_weights``; issue 18, findings on GPUs, 1.2.
    """
    shape = training.shape
    snapshots = SNAPSHOTS * 4.0 * training.trained
    probe = 2.0 * shape.parameters + 4.0 * shape.head_parameters * (1 if training.lora_rank else 0)
    merged = 4.0 * (shape.matrices if training.lora_rank else shape.parameters)
    return PROCESS_BYTES + snapshots + probe + merged + 2.0 * shape.parameters


def server_host_bytes(*, tensor_parallel: int) -> float:
    """Memory on the host of an actor's server."""
    return SERVER_PROCESS_BYTES * (1 + tensor_parallel)


def server_folder_bytes(training: Training) -> float:
    """Disk (or memory, where it is a file system in memory) of the folders that a server loads."""
    return FOLDERS * 2.0 * training.shape.untied_parameters
