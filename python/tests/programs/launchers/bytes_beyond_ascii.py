# SPDX-License-Identifier: Apache-2.0
import os

from accelerate import debug_launcher

debug_launcher(lambda: os.write(1, b"caf\xc3\xa9\n"))
