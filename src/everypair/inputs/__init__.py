"""Validation and conversion of what users pass: scores, labels, weights, groups and options.

`batches.batch_from` returns a checked `Batch`. Each kind of target has a module: `binary` labels,
`ordered` grades and real numbers, and `survival` times; `ranked` turns the last two into groups of
positive and negative rows, one set of groups for each bit of the rank. Imports `surrogates` only.
"""
