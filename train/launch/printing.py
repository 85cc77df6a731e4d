"""The subcommand `launch`: a script to edit, on standard output."""

from pathlib import Path
from typing import Literal

FILES = {"tpu-pod": "tpu_pod.sh", "gke-jobset": "gke_jobset.yaml", "slurm": "slurm.sbatch"}


def launch(where: Literal["tpu-pod", "gke-jobset", "slurm"], /) -> None:
    """Print a script that starts a run on a pod or cluster; its first lines are what to edit.

    Args:
        where: tpu-pod: a Cloud TPU slice, every worker; gke-jobset: TPU slices under GKE; slurm: GPUs.

    Examples:
        python -m train launch tpu-pod > pod.sh
        python -m train launch gke-jobset > jobset.yaml
        python -m train launch slurm > job.sbatch
    """
    print(script(where), end="")


def script(where: str) -> str:
    """The text of a launch script."""
    return (Path(__file__).parent / FILES[where]).read_text(encoding="utf-8")
