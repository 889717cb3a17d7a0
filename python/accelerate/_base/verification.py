# SPDX-License-Identifier: Apache-2.0
"""Records the parts of a training step that only Python can see, for `accelerate verify`:
optimizers and loaders that were not prepared, and the generators of Python and NumPy. Does nothing
in an ordinary run."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch

from accelerate import _C
from accelerate._base.trees import tensors_of
from accelerate.errors import MismatchError, UsageError

# None in an ordinary run.
RECORDER = _C.step_recorder()


class _Step:
    """The state of the current step."""

    # The states of the generators when the latest batch was returned.
    generators: Any = None


def note_batch(batch: Any, num_samples: int) -> None:
    """Called when a prepared loader is about to return a batch."""
    if RECORDER is not None:
        RECORDER.note_batch(tensors_of(batch), num_samples)
        _Step.generators = _generator_states()


def note_round(indices: Iterable[Any]) -> None:
    """Called when a sampler has returned the indices of one round of all processes."""
    if RECORDER is not None:
        known = tuple(indices)
        if all(isinstance(index, int) for index in known):
            RECORDER.note_order(hash(known) % 2**64)


def before_backward() -> None:
    if RECORDER is None:
        return
    if _Step.generators is not None and _Step.generators != _generator_states():
        RECORDER.note_obstacle(
            "The training step draws random numbers from Python's or NumPy's generator. A single "
            "process draws different numbers, so its steps differ"
        )
    _Step.generators = None


def watch_optimizers(
    prepared: Callable[[], list[Any]], models: Callable[[], list[torch.nn.Module]]
) -> None:
    """Reports optimizers that train a prepared model but are not in `prepared`."""
    if RECORDER is None:
        return
    recorder = RECORDER
    # Imported here, because an ordinary run does not need this module before its first optimizer.
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def check(optimizer: Any, *_: Any) -> None:
        if any(optimizer is own for own in prepared()):
            return
        of_models = {id(parameter) for model in models() for parameter in model.parameters()}
        if any(id(p) in of_models for group in optimizer.param_groups for p in group["params"]):
            recorder.note_problem(
                f"The optimizer {type(optimizer).__name__} trains a prepared model, but was not "
                "prepared itself. Pass it to prepare()"
            )

    register_optimizer_step_post_hook(check)


def keep_files() -> None:
    """Turns off saving in the program and in the libraries that it has imported so far, because
    `accelerate verify` must not replace a file or delete an old checkpoint."""
    if RECORDER is None:
        return
    save = torch.save

    def save_to_memory(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(obj, f, *args, **kwargs)

    torch.save = save_to_memory
    for module, kind, methods in _SAVERS:
        saver = getattr(sys.modules.get(module), kind, None)
        for method in methods:
            if hasattr(saver, method):
                setattr(saver, method, _save_nothing)


def _save_nothing(*_: Any, **__: Any) -> None:
    pass


# Classes of other libraries that write files, and the methods that do so.
_SAVERS = [
    ("transformers.trainer", "Trainer", ("_save_checkpoint", "save_model", "save_state")),
    ("transformers.modeling_utils", "PreTrainedModel", ("save_pretrained", "push_to_hub")),
    (
        "transformers.tokenization_utils_base",
        "PreTrainedTokenizerBase",
        ("save_pretrained", "push_to_hub"),
    ),
    ("diffusers.models.modeling_utils", "ModelMixin", ("save_pretrained", "push_to_hub")),
    ("diffusers", "DiffusionPipeline", ("save_pretrained", "push_to_hub")),
    ("peft", "PeftModel", ("save_pretrained", "push_to_hub")),
]


def _generator_states() -> Any:
    states: list[Any] = [hash(random.getstate())]
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state()
        states += [hash(state[1].tobytes()), state[2]]
    return states


def watch_modules(model: torch.nn.Module) -> None:
    """Records what the modules of a model return, if all processes have the same batches."""
    if RECORDER is None or not RECORDER.has_same_batches:
        return
    recorder = RECORDER

    def record(name: str, outputs: Any) -> None:
        tensors = [tensor for tensor in tensors_of(outputs) if not tensor.is_meta]
        recorder.note_outputs(name, tensors)

    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda _, __, outputs, name=name: record(name, outputs), always_call=False
        )


def _watch_loaders(recorder: _C.StepRecorder) -> None:
    """Also watches torch's own loaders. Prepared loaders read through torch's loaders, but report a
    batch only when they return it."""
    from torch.utils.data import dataloader

    kind: Any = dataloader._BaseDataLoaderIter
    read = kind.__next__

    def next_batch(self: Any) -> Any:
        recorder.note_raw_batch()
        return read(self)

    kind.__next__ = next_batch


def _report_uncaught_errors(recorder: _C.StepRecorder) -> None:
    before = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, (UsageError, MismatchError)):
            recorder.note_problem(str(error))
        before(kind, error, traceback)

    sys.excepthook = report


if RECORDER is not None:
    _watch_loaders(RECORDER)
    _report_uncaught_errors(RECORDER)
    # Programs without a seed would draw different numbers in the second run.
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
