# SPDX-License-Identifier: Apache-2.0
import json

import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(2, 1))
plugin = accelerator.state.dynamo_plugin
is_compiled = hasattr(model, "_orig_mod") or model._compiled_call_impl is not None
assert is_compiled == (plugin.backend != "NO"), model
print(json.dumps(plugin.to_dict()))
