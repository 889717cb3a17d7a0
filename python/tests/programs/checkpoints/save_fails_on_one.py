# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

from answers import answer
from small_run import accelerator

layout = None if sys.argv[1] == "ours" else sys.argv[1]
project = accelerator.project_configuration
project.automatic_checkpoint_naming, project.project_dir = True, "run"
failing = int(sys.argv[2])


def fail(models, weights, folder):
    raise OSError("no space left on device")


saved = []
for number in range(3):
    hook = None
    if number == 1 and accelerator.process_index == failing:
        hook = accelerator.register_save_state_pre_hook(fail)
    try:
        saved.append(Path(accelerator.save_state(layout=layout)).name)
    except OSError:
        saved.append("failed")
    if hook:
        hook.remove()
    accelerator.wait_for_everyone()
answer(saved)
