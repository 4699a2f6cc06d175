"""Triton kernels for CUDA. `plans` chooses how a batch is computed and is the entry of this folder.

`cached_launch` replays the launches of small batches, and `scale` scales a gradient in place. Each
plan (`pairs`, `moments`, `sorted_rows`, `buckets`) launches its kernels through `launch`; all share
the layout in `workspace`.
"""
