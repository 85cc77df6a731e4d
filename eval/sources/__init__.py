"""Where examples come from: files and their layouts, columns and labels, splits and leaks; all tasks by name."""
