"""Triton kernels for NVIDIA GPUs, and the plans that choose among them.

`plans.evaluate` computes any batch of two classes without groups, `cached_launch.loss_and_grad`
repeats the launches of an earlier batch of the same kind, `ordered.by_levels` computes ordered and
survival pairs, and `scale.scale_in_place` multiplies a gradient. Only `everypair.torch._dispatch`
imports these four, at their first use, because Triton is not installed everywhere. The other
modules are kernels and the code that launches them.

Kernels share these arguments. A kernel documents its programs, and the arguments that are its own.

===================  ==============================================================================
scores               (tasks, n) float, read
labels               (tasks, n) any type, read; positive if > 0
weights, vector      (tasks, n) float, read if HAS_WEIGHTS, HAS_VECTOR
terms                (N_TERMS, TERM_WORDS) float64, read; from `launch.coefficients`
grad, hess, hvp      (tasks, n) float, written if WANT_GRAD, WANT_HESS, HAS_VECTOR: the gradient,
                     the diagonal of the Hessian, and the Hessian times `vector`
value, pair_weight   (tasks,) float and float64, written: the loss, and the weight of all pairs
one_class            () int64, 1 is added for each task without pairs, if COUNTED
workspace            float64, written and read; `workspace` describes the layout
counters             (tasks,) int32, 0 before and after: programs that are done
n                    rows of a task
MEAN, MISSING        divide by the weight of all pairs; leave out rows whose label is NaN
DD                   use double-double numbers
===================  ==============================================================================
"""

import triton

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 4):
    # Triton 3.3 does not compile functions that return nested tuples, and launchers before it do
    # not take the constants of a kernel, which `launch` passes.
    raise ImportError(f"everypair needs Triton 3.4 or newer (torch 2.8); got {triton.__version__}.")
