# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys

from accelerate.launchers import notebook_launcher

print(
    notebook_launcher(
        lambda: (os.environ["RANK"], os.environ["WORLD_SIZE"]),
        num_processes=2,
        num_nodes=2,
        node_rank=int(sys.argv[1]),
        **json.loads(sys.argv[2]),
    )
)
