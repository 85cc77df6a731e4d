"""Texts from a decoder: prompts to rows, logits to draws, draws to texts, one at a time or in batches."""
