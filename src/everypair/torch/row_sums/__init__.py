"""Sums over all other rows for each row on tensors, and losses made of smooth ranks.

`row_sums` computes and differentiates the sums; `soft_ranks` and `average_precision` are composed
of them. Import the functions from `everypair.torch`.
"""
