# SPDX-License-Identifier: Apache-2.0
# Each line that ends in a comment is to be refused with these words.

from accelerate import Accelerator, notebook_launcher
from accelerate.commands.launch import launch_command
from accelerate.utils import ProjectConfiguration, gather_object, set_seed

accelerator = Accelerator(gradient_accumulation_steps=4)
gather_object([accelerator.process_index])
accelerator.process_index.upper()  # "int" has no attribute "upper"
Accelerator(mixed_precison="bf16")  # Unexpected keyword argument "mixed_precison"
with accelerator.main_process_first(1):  # Too many arguments for "main_process_first"
    pass
notebook_launcher(print, num_processes="two")  # expected "int | None"
launch_command(["train.py"])  # expected "Namespace"
set_seed("seven")  # expected "int"
ProjectConfiguration(total_limit="many")  # expected "int | None"
