"""From text to batches: sources -> shards -> rows -> pipeline."""
