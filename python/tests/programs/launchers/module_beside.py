# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import sys

from accelerate.launchers import debug_launcher

os.chdir(pathlib.Path(__file__).parent)
sys.path.insert(0, "lib")
import neighbour

print(debug_launcher(neighbour.answer))
print(debug_launcher(lambda: neighbour.answer() + " " + os.path.basename(os.getcwd())))
