# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys

home, *paths = sys.argv[1:]
os.environ["HF_HOME"] = home
from accelerate.commands.config.config_args import load_config_from_file

found = {}
for path in paths:
    try:
        config = load_config_from_file(path)
        found[path] = [type(config).__name__, config.to_dict()]
    except ValueError:
        found[path] = "refused"
print(json.dumps(found))
