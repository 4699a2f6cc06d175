"""Triton kernels for NVIDIA GPUs, and the plans that choose among them.

`plans.evaluate` computes any batch without groups, `cached_launch.loss_and_grad` repeats the
launches of an earlier batch of the same kind, and `scale.scale_in_place` multiplies a gradient.
Only `everypair.torch._dispatch` imports these three, at their first use, because Triton is not
installed everywhere. The other modules are kernels and the code that launches them.
"""
