"""The search over a grid: the store of trials, the workers and the runner."""
