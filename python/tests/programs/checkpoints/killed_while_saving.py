# SPDX-License-Identifier: Apache-2.0
import os
import signal
import sys
import time
from pathlib import Path

from small_run import accelerator

is_armed = False


def die(where):
    if is_armed and accelerator.process_index == 1 and sys.argv[1] == where:
        while not Path("run/checkpoints/checkpoint_1/checkpoint.json").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


class Victim:
    def state_dict(self):
        die("state_dict")
        return {"x": 1}

    def load_state_dict(self, state):
        pass


accelerator.register_for_checkpointing(Victim())
accelerator.register_save_state_pre_hook(lambda models, weights, folder: die("hook"))
accelerator.save_state("run/checkpoints/checkpoint_0")
accelerator.wait_for_everyone()
is_armed = True
die("before")
if sys.argv[1] == "late" and accelerator.process_index == 1:
    while not Path("run/checkpoints/checkpoint_1/checkpoint.json").exists():
        time.sleep(0.01)
    sys.argv[1] = "state_dict"
accelerator.save_state("run/checkpoints/checkpoint_1")
die("after")
accelerator.wait_for_everyone()
