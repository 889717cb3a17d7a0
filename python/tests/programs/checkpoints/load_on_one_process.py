# SPDX-License-Identifier: Apache-2.0
from small_run import accelerator, loader

accelerator.load_state("alone", restore_loaders=True)
print("left", len(list(loader)))
