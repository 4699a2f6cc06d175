"""Targets: which pairs of rows count.

Each kind of target has a module that checks it and says which rows are ranked above which: today
`binary` labels, a positive above a negative. `groups` restricts the pairs to rows of one group.
Ordered grades and survival times are to become modules here; every backend computes groups of
positive and negative rows, to which they reduce.
"""
