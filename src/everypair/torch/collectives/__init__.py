"""Exchange of rows and sums between the processes of a `torch.distributed` group.

`ranks` is the group with the two collectives that everypair uses, `agreement` is the first exchange
of a call, which raises an error on all ranks if one has an error, and `rows` gathers rows of uneven
numbers. Nothing here knows about losses.
"""
