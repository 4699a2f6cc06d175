"""Tools for training loops: sampler, large batches, monitor, optimisers, the AUCM baseline."""
