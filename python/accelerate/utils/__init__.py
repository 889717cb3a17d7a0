# SPDX-License-Identifier: Apache-2.0
"""Helpers beside `Accelerator`: options, collectives on nested data, seeds, memory, probes.

Names are imported when they are first used; docs/guide_python.md says which are there.
"""

from accelerate import _placeholders

# Module and function have one name. Imported here, the function is what the package keeps:
# a later import of the module would otherwise bind the module.
from accelerate.utils.tqdm import tqdm as tqdm

__getattr__ = _placeholders.placeholders_for(__name__)


def __dir__() -> list[str]:
    return _placeholders.names_of(__name__)
