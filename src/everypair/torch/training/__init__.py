"""Tools for training loops around the loss.

Here are the stratified sampler, backward for large batches, the epoch monitor with its Lightning
callback, the optimiser SAG, and the baseline AUCM with its optimiser PESG. They use the loss and
its input checks, and nothing else depends on them. Import their public names from
`everypair.torch`.
"""
