"""A plan for a language model in the terminal: memory by part, rates, a version's way, disk, split, cost."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.plan.render import MUTED, table
from tidegate.core.prices import dollars
from tidegate.core.sizing.fitting import Misfit, name_of
from tidegate.core.sizing.plan import GpuPlan, gigabytes

# Parts of a learner's memory, as they are called in a table.
PARTS = {
    "parameters": "parameters",
    "moments": "moments of Adam",
    "gradient": "gradient",
    "compute_copies": "rounded copies for the computation",
    "reference": "reference policy",
    "activations": "activations",
    "attention_masks": "masks, repeated keys and values",
    "logits_and_head": "logits and head",
    "reserve": "CUDA, NCCL, fragments",
}


def render_model(plan: GpuPlan, misfit: Misfit | None) -> RenderableType:
    """The whole answer; its last lines say whether it fits."""
    request = plan.request
    head = (
        f"{name_of(request.training)} on {request.gpus.count} x {request.gpus.kind.name},"
        f" MFU {request.mfu:.0%} (stated, not measured)"
    )
    return Group(
        Text(head, style="bold"),
        Text(),
        _memory(plan),
        Text(),
        _rollout(plan),
        Text(),
        _version(plan),
        Text(),
        _numbers(plan),
        Text(),
        *_verdict(plan, misfit),
    )


def _memory(plan: GpuPlan) -> Table:
    tokens = plan.request.training.tokens_in_pass
    rows = table(f"a GPU of the learner ({tokens:,} tokens in a pass)", "", "memory")
    for part, name in PARTS.items():
        size = float(getattr(plan.learner, part))
        if size:
            rows.add_row(name, gigabytes(size))
    rows.add_row("update, in all", gigabytes(plan.learner.training), style="bold")
    if plan.learner.start_of_ranks:
        rows.add_row("start of several ranks, in all", gigabytes(plan.learner.starting))
    rows.add_row("there are", gigabytes(plan.request.gpus.kind.memory_bytes))
    return rows


def _rollout(plan: GpuPlan) -> Table:
    memory = plan.rollout
    rows = table(f"a GPU of an actor ({plan.split.tensor_parallel} for each)", "", "memory")
    rows.add_row("weights in bfloat16", gigabytes(memory.weights))
    rows.add_row("workspace of the server", gigabytes(memory.workspace))
    length = plan.request.training.length
    rows.add_row(f"cache: {memory.texts:,} texts of {length:,} tokens an actor", gigabytes(memory.cache))
    rows.add_row("left to the driver", gigabytes(memory.unused))
    return rows


def _version(plan: GpuPlan) -> Table:
    rows = table(f"one version ({gigabytes(plan.version_bytes)})", "hop", "bytes", "seconds")
    for hop in plan.hops:
        rows.add_row(hop.name, gigabytes(hop.bytes), f"{hop.seconds:,.1f}")
    return rows


def _numbers(plan: GpuPlan) -> Table:
    split, disk = plan.split, plan.disk
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style=MUTED)
    rows.add_column()
    idle = f", {split.idle} idle" if split.idle else ""
    rows.add_row(
        "split",
        f"{split.learner_gpus} GPUs train, {split.num_actors} actors of {split.tensor_parallel}{idle}",
    )
    rows.add_row(
        "tokens/s",
        f"{split.trained_tokens_per_s:,.0f} trained ({plan.rate.tokens_per_s:,.0f} a GPU),"
        f" {split.generated_tokens_per_s:,.0f} generated",
    )
    rows.add_row(
        "disk",
        f"versions {gigabytes(disk.versions)}, checkpoints {gigabytes(disk.checkpoints)},"
        f" folders of an actor {gigabytes(disk.actor_folders)}",
    )
    rows.add_row(
        "host memory",
        f"a pod of the learner {gigabytes(plan.learner_host)}, an actor {gigabytes(plan.actor_host)} and its server",
    )
    rows.add_row("a checkpoint", f"{plan.checkpoint_s:,.0f} s")
    if plan.usd_per_h:
        rows.add_row(
            "cost",
            f"{dollars(plan.usd_per_h)} per hour, {dollars(plan.usd_per_million_tokens)} per million tokens",
        )
    return rows


def _verdict(plan: GpuPlan, misfit: Misfit | None) -> list[Text]:
    if misfit is None:
        spare = plan.request.gpus.kind.memory_bytes - plan.learner.total
        return [Text(f"It fits: {gigabytes(spare)} of each GPU of the learner are free.", style="bold")]
    return [
        Text(f"It does not fit: {misfit.what}: {misfit.why}.", style="bold"),
        Text(f"{misfit.fix[:1].upper()}{misfit.fix[1:]}.", style="bold"),
    ]
