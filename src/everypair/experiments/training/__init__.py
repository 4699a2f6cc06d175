"""Training of one trial: models, losses, optimisers, batches, measurements and saved models.

`models`, `objectives` and `optimisers` are tables of names that users may extend. `trial.train`
trains one model; `side_by_side.train_together` trains many small ones on a GPU at once. `saved`
writes models to files, and `winner` chooses the one that an experiment keeps. Modules here import
from `everypair.experiments` and from its folder `data`.
"""
