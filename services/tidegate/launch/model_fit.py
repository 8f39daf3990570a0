"""Refuses a run whose model cannot be trained here, or in the learner's pods, before anything of it starts."""

import shutil
import subprocess
from pathlib import Path

import psutil

from tidegate.core.errors import ConfigError
from tidegate.core.sizing.fitting import Misfit, does_not_fit_device
from tidegate.core.sizing.learner import CUDA_RESERVE_BYTES, PROCESS_BYTES, WIDTHS, Training
from tidegate.core.sizing.learner_room import LearnerRoom, does_not_fit_room
from tidegate.core.sizing.shapes import ModelShape
from tidegate.launch.preflight import PreflightError
from tidegate.launch.run_plan import RunPlan
from tidegate.models.model_folder import CONFIG_FILE, shape_of_folder

NVIDIA_SMI = "nvidia-smi"
# A driver that does not answer within it is judged as none; the learner itself reports it then.
DRIVER_DEADLINE_S = 10.0


def least_training(plan: RunPlan, shape: ModelShape) -> Training:
    """The least memory that training a run's model can take: one text of the length that its sampler allows."""
    policy, learner = plan.file.policy, plan.services["learner"]
    length = min(policy.context_length, plan.file.workload.sampler.max_new_tokens, shape.context_length)
    return Training(
        shape=shape,
        length=length,
        lora_rank=policy.lora.rank,
        width_bytes=WIDTHS[policy.dtype],
        pass_tokens=1,
        reference=learner.language_model.reads_reference,
        ranks=learner.ranks,
    )


def check_model_fits(plan: RunPlan, *, room: LearnerRoom | None = None) -> None:
    """Compare the learner's least memory with its room, or with what is here where that is None.

    A model that the formulas do not describe is not judged.

    Raises:
        PreflightError: it cannot fit; the message names the nearest that does.
    """
    policy, learner = plan.file.policy, plan.services["learner"]
    if policy.kind != "transformers" or not (Path(policy.path) / CONFIG_FILE).is_file():
        return
    try:
        training = least_training(plan, shape_of_folder(Path(policy.path)))
    except ConfigError:
        return
    if room is not None:
        misfit = does_not_fit_room(training, room, keep_checkpoints=learner.keep_checkpoints)
    else:
        misfit = misfit_here(
            training,
            device=learner.device,
            gpu_bytes=gpu_memory_bytes(),
            host_bytes=float(psutil.virtual_memory().total),
        )
    if misfit is not None:
        raise PreflightError(misfit.what, why=misfit.why, fix=misfit.fix)


def misfit_here(
    training: Training, *, device: str, gpu_bytes: float | None, host_bytes: float
) -> Misfit | None:
    """What does not fit: on the smallest GPU, or in the memory of a host without GPUs, where ranks share it."""
    if device != "cpu" and gpu_bytes is not None:
        return does_not_fit_device(
            training, room=gpu_bytes, device="the smallest GPU here", reserve_bytes=CUDA_RESERVE_BYTES
        )
    return does_not_fit_device(
        training,
        room=host_bytes / training.ranks,
        device="this machine" if training.ranks == 1 else f"each of {training.ranks} ranks on this machine",
        reserve_bytes=PROCESS_BYTES,
    )


def gpu_memory_bytes() -> float | None:
    """Memory of the smallest GPU that the driver reports; None without a driver, or where it does not answer."""
    program = shutil.which(NVIDIA_SMI)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DRIVER_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    sizes_mib = [float(line) for line in done.stdout.split() if line.strip().isdigit()]
    return min(sizes_mib) * (1 << 20) if done.returncode == 0 and sizes_mib else None
