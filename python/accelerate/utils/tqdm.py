# SPDX-License-Identifier: Apache-2.0
"""A progress bar that only one process of each machine shows."""

from __future__ import annotations

from typing import Any

from accelerate._placeholders import placeholders_for


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """Like `tqdm.auto.tqdm(*args, **kwargs)`, but shown only on the first process of each machine,
    unless `main_process_only` is False.
    """
    if args and isinstance(args[0], bool):
        raise ValueError(
            f"[tqdm] The first argument is {args[0]}, expected an iterable. Pass main_process_only "
            "by name"
        )
    try:
        from tqdm.auto import tqdm as progress_bar
    except ImportError:
        raise ImportError(
            "[tqdm] The package tqdm is not installed. Run `pip install tqdm`"
        ) from None
    if main_process_only and not kwargs.get("disable", False):
        # Imported here, because `import accelerate.utils` must not import torch.
        from accelerate.state import PartialState

        kwargs["disable"] = PartialState().local_process_index != 0
    return progress_bar(*args, **kwargs)


__getattr__ = placeholders_for(__name__)
