# SPDX-License-Identifier: Apache-2.0
import json
import sys
import time
import warnings
from pathlib import Path

from small_run import accelerator, loader, model, optimizer

accelerator.project_configuration.set_directories("run")
accelerator.project_configuration.automatic_checkpoint_naming = True
accelerator.project_configuration.total_limit = json.loads(sys.argv[1])
warnings.simplefilter("error")
for number, batch in enumerate(loader):
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if number == 0 and accelerator.is_main_process:
        accelerator.save_state()
        accelerator.save_state()
    if number > 0:
        # Each of the two comes first once.
        if accelerator.process_index == number % 2:
            while (
                not list(Path("run/checkpoints").glob(f".checkpoint_{number + 1}.*rank_1*"))
                and not Path(f"run/checkpoints/checkpoint_{number + 1}").exists()
            ):
                time.sleep(0.01)
        assert accelerator.save_state().name == f"checkpoint_{number + 1}"
        accelerator.wait_for_everyone()
    if number == 2:
        break
accelerator.load_state()
parts = Path("run/checkpoints/checkpoint_3").glob("rank_*.json")
assert sorted(path.name for path in parts) == ["rank_0-at-3.json", "rank_1-at-3.json"]
print("done", accelerator.process_index)
