"""Tools for training loops around the loss.

Here are the stratified sampler, backward for large batches, the epoch monitor and `AUCMetric`, the
optimiser SAG, and the baseline AUCM with its optimiser PESG. They use the loss, its input checks
and `everypair.streaming`, and nothing else depends on them. Import their public names from
`everypair.torch`.
"""
