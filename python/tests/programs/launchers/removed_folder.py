# SPDX-License-Identifier: Apache-2.0
import os
import tempfile

from accelerate import debug_launcher

with tempfile.TemporaryDirectory() as name:
    os.chdir(name)
print(debug_launcher(lambda: "here"))
