"""Data sets of the experiments: images, tables, how they are split and encoded."""
