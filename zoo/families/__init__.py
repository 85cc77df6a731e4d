"""Presets: each family is a page of settings of the one block."""
