"""The work of the commands that need no store: evaluate, geometry and timing.

`evaluation` measures a file of predictions and `roc_curve` draws its ROC curve; `geometry` draws
the paper's figure 1, and `timing` with `timing_plot` measures and draws figure 2. `output` writes
figures and rows to files. Modules here import from `everypair.experiments` and `data`; only
`commands` imports from here.
"""
