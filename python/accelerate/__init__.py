# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate's API on a C++ engine. Start with `Accelerator` and docs/guide_python.md.

Names are imported on first use, so `import accelerate` costs next to nothing.
"""

from accelerate import _placeholders

__version__ = "1.15.0+cpp.0.1.0"

_placeholders.install_finder()
__getattr__ = _placeholders.placeholders_for(__name__)


def __dir__() -> list[str]:
    return [*_placeholders.names_of(__name__), "__version__"]
