# SPDX-License-Identifier: Apache-2.0
import json
import sys

from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2

print(
    json.dumps([convert_config_to_fsdp2({"fsdp_config": one}) for one in json.loads(sys.argv[1])])
)
