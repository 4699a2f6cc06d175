"""Training of one trial: models, objectives, optimisers, batches, measurements, saved models."""
