"""Validation and conversion of what users pass: scores, labels, weights, groups and options.

`batches.batch_from` returns a checked `Batch`. Each kind of target has a module: `binary` labels,
`ranked` grades and real numbers, and `survival` times, which are ranked too. `hardest` selects the
rows of a partial AUC. Imports `surrogates` and `arrays` only.
"""
