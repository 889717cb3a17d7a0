# SPDX-License-Identifier: Apache-2.0
"""Starting processes; see `accelerate.launchers`."""

from accelerate._placeholders import placeholders_for
from accelerate.launchers import PrepareForLaunch as PrepareForLaunch

__getattr__ = placeholders_for(__name__)
