"""Know a run on a pod before owning one: compile it ahead of time, count what it does, predict its time and cost."""
