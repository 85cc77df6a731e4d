"""Scripts that start a run on a pod or a cluster: Cloud TPU, GKE JobSet, Slurm. `python -m train launch` prints one."""
