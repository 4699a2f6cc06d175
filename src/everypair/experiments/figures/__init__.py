"""Work of the commands that need no store: geometry, timing and evaluation of predictions."""
