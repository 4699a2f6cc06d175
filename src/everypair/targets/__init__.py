"""Targets: which pairs of rows count.

Each kind of target has a module that checks it: `binary` labels, `ordered` grades and real numbers,
and `survival` times. `ranked` turns the last two into groups of positive and negative rows, one set
of groups for each bit of the rank, which every backend computes. `groups` restricts the pairs to
rows of one group.
"""
