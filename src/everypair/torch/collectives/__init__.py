"""Exchange between the processes of a `torch.distributed` group.

`processes` is the group with the collectives that everypair uses, and `agreement` the first
exchange of a call, which raises an error on all ranks if one has an error.
"""
