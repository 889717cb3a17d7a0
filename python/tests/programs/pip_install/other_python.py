# SPDX-License-Identifier: Apache-2.0
import sys

sys.path.insert(0, sys.argv[1])
try:
    from accelerate import Accelerator  # noqa: F401
except ImportError as error:
    print(error)
