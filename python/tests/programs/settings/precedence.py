# SPDX-License-Identifier: Apache-2.0
# Settings of a program and its variables, and the result.

import json
import os
import sys

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin

before = {**os.environ, "ACCELERATE_USE_CPU": "1"}
for variables, arguments in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update(before, **variables)
    if "gradient_accumulation_plugin" in arguments:
        plugin = GradientAccumulationPlugin(**arguments["gradient_accumulation_plugin"])
        arguments["gradient_accumulation_plugin"] = plugin
    accelerator = Accelerator(**arguments)
    print(
        json.dumps(
            [
                accelerator.gradient_accumulation_steps,
                accelerator.gradient_state.num_steps,
                accelerator.mixed_precision,
                accelerator.state.debug,
                str(accelerator.device),
            ]
        )
    )
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
