"""Data sets of the experiments, and how they are split, encoded and augmented.

`sources` is the table of data sets by name, `image_datasets` holds the image data sets, and
`splits` makes the subtrain, validation and test parts. `augment` crops and mirrors images. Modules
that start with an underscore are used only here, by `training.saved` and by `figures`; modules here
import from `everypair.experiments` itself and from no other folder.
"""
