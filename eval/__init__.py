"""How good a model is: tasks, metrics, baselines, statistics over seeds, and the report that shows what pre-training bought."""
