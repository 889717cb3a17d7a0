# SPDX-License-Identifier: Apache-2.0
import sys

from small_run import accelerator, loader, model, optimizer

layout = sys.argv[1] or None
accelerator.project_configuration.set_directories("run")
accelerator.project_configuration.automatic_checkpoint_naming = True
for number, batch in enumerate(loader):
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if accelerator.is_main_process and number == 2:
        assert accelerator.save_state(layout=layout).name == "checkpoint_0"
accelerator.project_configuration.iteration = 1
assert accelerator.save_state(layout=layout).name == "checkpoint_1"
accelerator.wait_for_everyone()
accelerator.project_configuration.iteration = 1
try:
    accelerator.save_state(layout=layout)
except ValueError as error:
    assert "already exists" in str(error)
    print("refused", accelerator.process_index)
accelerator.load_state()
print("done", accelerator.process_index)
