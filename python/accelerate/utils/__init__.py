# SPDX-License-Identifier: Apache-2.0
"""Options and helper functions: collectives on nested data, seeds, memory, and checks of what is
available.

Names are imported on first use. docs/guide_python.md lists them.
"""

from accelerate import _placeholders

# The module and its function have the same name. Import the function here, because a later import
# of the module would bind the name to the module.
from accelerate.utils.tqdm import tqdm as tqdm

__getattr__ = _placeholders.placeholders_for(__name__)


def __dir__() -> list[str]:
    return _placeholders.names_of(__name__)
