# SPDX-License-Identifier: Apache-2.0
"""The methods of DeepSpeed's engine that save and load. User code and libraries call them on the
model that `prepare` returns with a `DeepSpeedPlugin` (docs/guide_sharding.md)."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from accelerate._base import debug as _debug
from accelerate._base.pickling import as_wrapped
from accelerate._models.run_context import RunContext
from accelerate.errors import UsageError

# DeepSpeed's names.
_LATEST = "latest"
_STEP = "global_step"
_CLIENT = "client_state.pt"
# Kinds of state that DeepSpeed's checkpoints do not contain.
_NOT_DEEPSPEEDS = ("loader", "python_loader", "generator", "python_generator")


class DeepSpeedEngine:
    """The engine of one prepared model. It saves and loads everything that `accelerator` has
    prepared."""

    def __init__(self, accelerator: Any, context: RunContext) -> None:
        # Weak references, because both objects refer to the model.
        self._accelerator = weakref.ref(accelerator)
        self._context = weakref.ref(context)

    @property
    def accelerator(self) -> Any:
        return _existing(self._accelerator)

    @property
    def context(self) -> RunContext:
        return _existing(self._context)

    @property
    def config(self) -> dict[str, Any]:
        return self.accelerator.deepspeed_plugin.deepspeed_config

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike,
        tag: str | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
    ) -> bool:
        """Saves all prepared objects to `save_dir/tag` (default: `global_stepN` after N updates)
        and writes the tag to the file `latest`. Call it on all processes."""
        accelerator = self.accelerator
        name = str(tag or f"{_STEP}{self._num_updates}")

        def write_client_state(models: Any, weights: Any, folder: str) -> None:
            if client_state and accelerator.is_main_process:
                torch.save(client_state, Path(folder) / _CLIENT)

        hook = accelerator.register_save_state_pre_hook(write_client_state)
        try:
            with self._as_deepspeed():
                accelerator.save_state(Path(save_dir) / name)
        finally:
            hook.remove()
        # The checkpoint is complete when all processes have written their files.
        accelerator.wait_for_everyone()
        if save_latest and self.context.is_writer:
            latest = Path(save_dir) / f".{_LATEST}.{os.getpid()}"
            latest.write_text(name, encoding="utf-8")
            latest.replace(Path(save_dir) / _LATEST)
        return True

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
    ) -> tuple[str | None, dict[str, Any]]:
        """Loads a checkpoint that `save_checkpoint` has written, by default the latest one. Returns
        its path and the `client_state`, or None and an empty dictionary if there is no checkpoint.
        Call it on all processes."""
        accelerator = self.accelerator
        if load_module_only or not (load_optimizer_states and load_lr_scheduler_states):
            raise UsageError(
                "[load_checkpoint] A checkpoint can only be loaded as a whole: weights, optimizer "
                "state and scheduler state. Leave load_module_only, load_optimizer_states and "
                "load_lr_scheduler_states at their defaults, or load the weights that save_model() "
                "saved, before you call prepare()."
            )
        if tag is None:
            latest = Path(load_dir) / _LATEST
            if not latest.is_file():
                _debug.warn(
                    f"[load_checkpoint] {load_dir} contains no checkpoint, because the file "
                    "'latest' is missing. Pass the folder that save_checkpoint() wrote to"
                )
                return None, {}
            tag = latest.read_text(encoding="utf-8").strip()
        folder = Path(load_dir) / tag
        with self._as_deepspeed():
            accelerator.load_state(folder)
        if (found := re.fullmatch(rf"{_STEP}(\d+)", tag)) is not None:
            for optimizer in self.context.optimizers:
                optimizer._num_updates = int(found[1])
        client = folder / _CLIENT
        state = torch.load(client, map_location="cpu") if client.is_file() else {}
        return str(folder), state

    @contextmanager
    def _as_deepspeed(self) -> Iterator[None]:
        """Inside the block, checkpoints contain the same state as DeepSpeed's, without loaders and
        generators."""
        self.context.kinds_left_out = _NOT_DEEPSPEEDS
        try:
            yield
        finally:
            self.context.kinds_left_out = ()

    @property
    def _num_updates(self) -> int:
        return max((opt._num_updates for opt in self.context.optimizers), default=0)


def _existing(found: weakref.ref) -> Any:
    if (known := found()) is None:
        raise UsageError(
            "[DeepSpeed] The Accelerator that prepared this model no longer exists. Keep the "
            "Accelerator alive while you use the model"
        )
    return known


class ConfigView:
    """The configuration of a model. Like `config` of DeepSpeed's engine, `get` also reads
    DeepSpeed's configuration."""

    __slots__ = ("_own", "_deepspeed")

    def __init__(self, own: Any, deepspeed: dict[str, Any]) -> None:
        object.__setattr__(self, "_own", own)
        object.__setattr__(self, "_deepspeed", deepspeed)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return self._own.__class__

    def get(self, key: str, default: Any = None) -> Any:
        return self._deepspeed.get(key, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own, name, value)

    def __reduce__(self) -> Any:
        # A copy becomes the model's own configuration.
        return as_wrapped(self._own)

    def __repr__(self) -> str:
        return repr(self._own)
