# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys

from accelerate.commands import launch
from accelerate.utils import TorchDynamoPlugin
from accelerate.utils.launch import prepare_simple_launcher_cmd_env

variables = dict(os.environ)
found = []
for flags in json.loads(sys.argv[1]):
    args = launch.launch_command_parser().parse_args(["--cpu", *flags, "script.py"])
    args, _, _ = launch._validate_launch_command(args)
    os.environ.update(prepare_simple_launcher_cmd_env(args)[1])
    found.append(TorchDynamoPlugin().to_dict())
    os.environ.clear()
    os.environ.update(variables)
print(json.dumps(found))
