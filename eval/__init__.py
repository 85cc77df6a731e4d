"""How good a model is: tasks, metrics, baselines, statistics over seeds, and a report of what pre-training bought."""
