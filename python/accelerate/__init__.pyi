# SPDX-License-Identifier: Apache-2.0
# For type checkers: the supported names. Others are placeholders (docs/guide_python.md).
from typing import Any

from accelerate.accelerator import Accelerator as Accelerator
from accelerate.data_loader import skip_first_batches as skip_first_batches
from accelerate.launchers import debug_launcher as debug_launcher
from accelerate.launchers import notebook_launcher as notebook_launcher
from accelerate.state import PartialState as PartialState
from accelerate.utils.dataclasses import AutocastKwargs as AutocastKwargs
from accelerate.utils.dataclasses import DataLoaderConfiguration as DataLoaderConfiguration
from accelerate.utils.dataclasses import DDPCommunicationHookType as DDPCommunicationHookType
from accelerate.utils.dataclasses import (
    DistributedDataParallelKwargs as DistributedDataParallelKwargs,
)
from accelerate.utils.dataclasses import DistributedType as DistributedType
from accelerate.utils.dataclasses import GradScalerKwargs as GradScalerKwargs
from accelerate.utils.dataclasses import InitProcessGroupKwargs as InitProcessGroupKwargs
from accelerate.utils.dataclasses import ProfileKwargs as ProfileKwargs
from accelerate.utils.imports import is_rich_available as is_rich_available
from accelerate.utils.memory import find_executable_batch_size as find_executable_batch_size
from accelerate.utils.random import synchronize_rng_states as synchronize_rng_states

__version__: str

def __getattr__(name: str) -> Any: ...
