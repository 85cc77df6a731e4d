"""What came before Transformers, for comparison."""
