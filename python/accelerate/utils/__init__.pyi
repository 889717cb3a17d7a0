# SPDX-License-Identifier: Apache-2.0
# For type checkers: the supported names. Others are placeholders (docs/guide_python.md).
from typing import Any

from accelerate.utils.dataclasses import *
from accelerate.utils.environment import *
from accelerate.utils.imports import *
from accelerate.utils.memory import *
from accelerate.utils.operations import *
from accelerate.utils.other import *
from accelerate.utils.random import *
from accelerate.utils.tqdm import tqdm as tqdm
from accelerate.utils.versions import *

def __getattr__(name: str) -> Any: ...
