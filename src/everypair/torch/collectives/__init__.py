"""Exchange of rows and gradients between the processes of a `torch.distributed` group.

`processes` is the group with the collectives that everypair uses, `agreement` the first exchange of
a call, which raises an error on all ranks if one has an error, and `minority` computes a loss over
binary pairs, which it gets as a function, from an exchange of the rows of the smaller class.
"""
