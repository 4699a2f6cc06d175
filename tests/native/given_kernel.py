"""A plugin of pytest that tests the build of the kernel in the folder `EVERYPAIR_KERNEL`.

EVERYPAIR_KERNEL=build/sanitize-python pytest -p tests.native.given_kernel
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

NAME = "everypair._native"
FOLDER = os.environ.get("EVERYPAIR_KERNEL")

# Doctests import every module, also without the variable.
if FOLDER:
    (_file,) = Path(FOLDER).glob("_native*.so")
    _spec = spec_from_file_location(NAME, _file, loader=ExtensionFileLoader(NAME, str(_file)))
    assert _spec
    assert _spec.loader
    sys.modules[NAME] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[NAME])


def pytest_report_header() -> str:
    from everypair.kernel import choose

    assert choose.native.kernel is sys.modules[NAME]
    return f"kernel: {FOLDER}"
