# SPDX-License-Identifier: Apache-2.0
"""Values that several modules share."""

import operator

from accelerate._placeholders import placeholders_for

STR_OPERATION_TO_FUNC = {
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
}

__getattr__ = placeholders_for(__name__)
