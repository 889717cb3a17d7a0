# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys

assert "accelerate.commands.config" not in sys.modules
os.environ.clear()
os.environ.update(json.loads(sys.argv[1]))
from accelerate.commands.config import default_config_file

print(default_config_file)
