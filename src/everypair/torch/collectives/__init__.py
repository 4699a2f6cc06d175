"""Exchange of rows and gradients between the processes of a `torch.distributed` group.

`ranks` is the group with the two collectives that everypair uses, `agreement` the first exchange of
a call, which raises an error on all ranks if one has an error, `rows` gathers rows of uneven
numbers, and `minority` computes a loss over binary pairs, which it gets as a function.
"""
