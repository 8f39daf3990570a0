"""Write the chart's presets for language models on GPUs, whose numbers are those of the plan; or check them.

Usage: .venv/bin/python tools/chart_presets.py [--check]. ``core.sizing`` says what fits, how the GPUs are divided, and
what the pods ask for; a preset is that as values, with a run file that a user's own goes over.
"""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from tidegate.core.sizing.accelerators import parse_gpus
from tidegate.core.sizing.fitting import Machine, does_not_fit, name_of
from tidegate.core.sizing.learner import Training
from tidegate.core.sizing.plan import GpuPlan, PlanRequest, plan
from tidegate.core.sizing.pods import RunPods, pods_of
from tidegate.core.sizing.shapes import SHAPES
from tidegate.core.sizing.versions import RELOAD_BYTES_PER_S

PRESETS = Path(__file__).resolve().parent.parent / "helm" / "tidegate" / "presets"
LORA_RANK = 16
# Completions of one prompt; the chart's run files have as many.
SAMPLES = 8
# Of the longest text, what is left to the prompt.
PROMPT_SHARE = 0.25
CPUS_PER_GPU = 4
# A reload may take four times as long as the plan's guess.
UPDATE_MARGIN, UPDATE_DEADLINE_S_MIN = 4.0, 120
# Of the clouds' preemptible capacity, the longest notice (AWS); others give 30 s.
SPOT_NOTICE_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model on some GPUs. ``learner_gpus`` 0: as the plan proposes. ``spot``: the actors are preemptible."""

    model: str
    gpus: str
    length: int
    batch_texts: int
    learner_gpus: int = 0
    spot: bool = False

    def planned(self) -> GpuPlan:
        """The plan, which fits.

        Raises:
            ValueError: it does not.
        """
        training = Training(
            SHAPES[self.model], length=self.length, lora_rank=LORA_RANK, pass_tokens=self.length
        )
        answer = plan(PlanRequest(training, parse_gpus(self.gpus), learner_gpus=self.learner_gpus))
        if misfit := does_not_fit(answer, Machine()):
            raise ValueError(f"{self}: {misfit.what}: {misfit.why}; {misfit.fix}")
        return answer


GENERATED: dict[str, Preset] = {
    "7b-8gpu": Preset(model="7b", gpus="8xH100-80", length=4096, batch_texts=128),
    "32b-64gpu": Preset(model="32b", gpus="64xH200-141", length=2048, batch_texts=512),
    "spot-actors": Preset(
        model="7b", gpus="12xH100-80", length=4096, batch_texts=128, learner_gpus=8, spot=True
    ),
}

ON_DEMAND = """
  podAnnotations:
    karpenter.sh/do-not-disrupt: "true"
    cluster-autoscaler.kubernetes.io/safe-to-evict: "false\""""
ON_SPOT = """
  nodeSelector: {tidegate.dev/capacity: spot}
  podAnnotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: "true"}"""
TOLERATED = "{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}"
TOLERATED_SPOT = "{key: tidegate.dev/capacity, operator: Equal, value: spot, effect: NoSchedule}"


def text(name: str) -> str:
    """A preset's file."""
    preset = GENERATED[name]
    answer = preset.planned()
    pods = pods_of(answer, batch_texts=preset.batch_texts)
    return f"""{_head(name, preset, answer, pods)}
run:
{_run(preset, answer, pods)}

learner:
  gpu: {pods.learner.gpus}
  gpuKind: {answer.request.gpus.kind.name}
  ranks: {answer.split.learner_gpus}
{_resources(pods.learner.memory_gib, cpus=CPUS_PER_GPU * pods.learner.gpus)}
  sharedMemory: {pods.learner.shared_memory_gib}Gi
  persistence: {{size: {pods.learner.disk_gib}Gi}}{ON_DEMAND if preset.spot else ""}
  tolerations:
    - {TOLERATED}
actor:
  gpu: {pods.actor.gpus}
{_resources(pods.actor.memory_gib, cpus=CPUS_PER_GPU * pods.actor.gpus, disk_gib=pods.actor.disk_gib)}
  sharedMemory: {pods.actor.shared_memory_gib}Gi
  scratch: {{size: {pods.actor.disk_gib}Gi}}{ON_SPOT if preset.spot else ""}
  tolerations:
    - {TOLERATED}{chr(10) + "    - " + TOLERATED_SPOT if preset.spot else ""}
weightDistribution:
{_resources(pods.weights.memory_gib, cpus=1)}
  persistence: {{size: {pods.weights.disk_gib}Gi}}
"""


def _head(name: str, preset: Preset, answer: GpuPlan, pods: RunPods) -> str:
    split, kind = answer.split, answer.request.gpus.kind.name
    where = (
        f"{pods.learner.gpus} in each of {pods.learner.count} pods"
        if pods.learner.count > 1
        else "in one pod"
    )
    fixed = f" --learner-gpus {preset.learner_gpus}" if preset.learner_gpus else ""
    lines = [
        f"{name_of(answer.request.training)}, on {answer.request.gpus.count} x {kind}: made by `make chart` from",
        f"  tidegate plan --model {preset.model} --gpus {preset.gpus} --lora {LORA_RANK} --length {preset.length}"
        f" --pass-tokens {preset.length}{fixed}",
        f"{split.learner_gpus} GPUs train, {where}, and there is room for {split.num_actors} actors of"
        f" {split.tensor_parallel}:",
        f"  kubectl scale deployment/<release>-actor --replicas={split.num_actors}",
        "Your own run file goes over `run`. `model` names the claim, image or URL of the model (docs/gpu.md).",
    ]
    if preset.spot:
        lines += [
            f"Actors are on preemptible nodes, and end within the {SPOT_NOTICE_S} s of notice that AWS gives.",
            "Where it is 30 s, set run.drain_timeout_s to 10: the learner's last checkpoint may then be cut, and it",
            "computes the updates after the one before again.",
        ]
    return "\n".join(f"# {line}" for line in lines)


def _run(preset: Preset, answer: GpuPlan, pods: RunPods) -> str:
    training = answer.request.training
    slots = max(1, answer.rollout.texts // SAMPLES)
    folder = 2.0 * training.shape.untied_parameters
    update_s = max(UPDATE_DEADLINE_S_MIN, math.ceil(UPDATE_MARGIN * folder / RELOAD_BYTES_PER_S))
    parallel = answer.split.tensor_parallel
    arguments = f"\n      arguments: [--tensor-parallel-size, '{parallel}']" if parallel > 1 else ""
    return f"""  run: {preset.model.replace(".", "-")}
  drain_timeout_s: {pods.drain_s} # an update of the longest texts, and a checkpoint
  workload:
    kind: text
    env: sums
    num_samples: {SAMPLES}
    sampler: {{temperature: 1.0, max_new_tokens: {int(training.length * (1 - PROMPT_SHARE))}}}
  policy:
    kind: transformers
    path: /models/base
    dtype: bfloat16
    context_length: {training.length}
    lora: {{rank: {training.lora_rank}}}
  batch_size: {preset.batch_texts}
  max_running: {max(2 * preset.batch_texts, slots * SAMPLES * answer.split.num_actors)}
  staleness: {{max_age_s: 1800}}
  task_queue: {{task_deadline_s: 1800}}
  actor:
    engine: vllm
    slots: {slots} # groups of {SAMPLES}, as many as the cache of a server holds
    server:
      python: /vllm/bin/python{arguments}
      ready_deadline_s: 1800
      update_deadline_s: {update_s}
  learner:
    pass_tokens: {training.pass_tokens}
    language_model: {{minibatches: 1, learning_rate: 2.0e-5}}"""


def _resources(memory_gib: int, *, cpus: int, disk_gib: int = 0) -> str:
    """``disk_gib``: of the node itself, which the scheduler does not know from the size of a pod's scratch."""
    memory = f"memory: {memory_gib}Gi"
    disk = f", ephemeral-storage: {disk_gib}Gi" if disk_gib else ""
    return f'  resources: {{requests: {{cpu: "{cpus}", {memory}{disk}}}, limits: {{{memory}}}}}'


def main() -> int:
    """Write the files, or with ``--check`` report which are outdated."""
    parser = argparse.ArgumentParser(description="Write the chart's presets that are made from plans.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is outdated")
    check: bool = parser.parse_args().check
    behind = False
    for name in GENERATED:
        path, wanted = PRESETS / f"{name}.yaml", text(name)
        if path.exists() and path.read_text(encoding="utf-8") == wanted:
            continue
        behind = True
        if check:
            sys.stderr.write(f"presets/{name}.yaml is outdated: run `make chart` and commit it.\n")
        else:
            path.write_text(wanted, encoding="utf-8")
    return 1 if check and behind else 0


if __name__ == "__main__":
    sys.exit(main())
