# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys

os.environ["HF_HOME"] = "nowhere"
from accelerate.commands.tpu import tpu_command_launcher, tpu_command_parser

os.chdir(sys.argv[1])
for words in json.loads(sys.argv[2]):
    tpu_command_launcher(tpu_command_parser().parse_args([*words, "--debug"]))
