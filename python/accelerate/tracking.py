# SPDX-License-Identifier: Apache-2.0
"""Trackers, which store the metrics of a run. There is one class per service, which uses the
service's own package (docs/guide_observe.md)."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from packaging.version import parse

from accelerate import _C
from accelerate._placeholders import placeholders_for
from accelerate.errors import AccelerateError
from accelerate.logging import get_logger
from accelerate.state import PartialState
from accelerate.utils.dataclasses import LoggerType
from accelerate.utils.environment import str_to_bool
from accelerate.utils.imports import (
    is_aim_available,
    is_clearml_available,
    is_comet_ml_available,
    is_dvclive_available,
    is_mlflow_available,
    is_swanlab_available,
    is_tensorboard_available,
    is_trackio_available,
    is_wandb_available,
)
from accelerate.utils.operations import listify
from accelerate.utils.versions import compare_versions

logger = get_logger(__name__)

# The order in which "all" starts the trackers.
_AVAILABLE = {
    LoggerType.TENSORBOARD: is_tensorboard_available,
    LoggerType.WANDB: is_wandb_available,
    LoggerType.COMETML: is_comet_ml_available,
    LoggerType.AIM: is_aim_available,
    LoggerType.MLFLOW: is_mlflow_available,
    LoggerType.CLEARML: is_clearml_available,
    LoggerType.DVCLIVE: is_dvclive_available,
    LoggerType.SWANLAB: is_swanlab_available,
    LoggerType.TRACKIO: is_trackio_available,
}


def on_main_process(function: Callable) -> Callable:
    """Makes a method of a tracker run only on the main process, unless `main_process_only` of the
    tracker is False. The decorator may be used before the processes are connected."""

    @functools.wraps(function)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self, "main_process_only", False):
            return function(self, *args, **kwargs)
        return PartialState().on_main_process(function)(self, *args, **kwargs)

    return run


@functools.cache
def _installed() -> tuple[LoggerType, ...]:
    return tuple(kind for kind, is_available in _AVAILABLE.items() if is_available())


def get_available_trackers() -> list[LoggerType]:
    """Returns the trackers whose packages are installed."""
    return list(_installed())


class GeneralTracker:
    """The base class of all trackers. To add a custom tracker, derive a class from it and pass an
    object of this class as `log_with`.

    A class must have `name`, `requires_logging_directory` and a property `tracker`, which returns
    the object of the service's package. With `main_process_only = False`, methods marked with
    `@on_main_process` run on every process that creates the tracker.
    """

    main_process_only = True

    def __init__(self, _blank: bool = False) -> None:
        # Checked by name, because evaluating a property may require `start`.
        wanted = ("name", "requires_logging_directory", "tracker")
        missing = [f"`{name}`" for name in wanted if name not in dir(self)]
        if missing and not _blank:
            raise NotImplementedError(
                f"[{type(self).__name__}] The tracker lacks the required attributes "
                f"{', '.join(missing)}. Define them in its class"
            )

    def start(self) -> None:
        """Opens the run. `Accelerator.init_trackers` calls it when processes are connected."""

    def store_init_configuration(self, values: dict) -> None:
        """Stores the hyperparameters, a dictionary of booleans, numbers, strings and None."""

    def log(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Stores the named values at this step."""

    def finish(self) -> None:
        """Ends the run."""


class TensorBoardTracker(GeneralTracker):
    """Writes event files to `logging_dir/run_name`. `writer` is torch's `SummaryWriter`, to which
    `kwargs` are passed."""

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir_param = logging_dir
        self.init_kwargs = kwargs

    @on_main_process
    def start(self) -> None:
        try:
            from torch.utils import tensorboard
        except ModuleNotFoundError:
            import tensorboardX as tensorboard

        self.logging_dir = os.path.join(self.logging_dir_param, self.run_name)
        self.writer = tensorboard.SummaryWriter(self.logging_dir, **self.init_kwargs)

    @property
    def tracker(self) -> Any:
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        """Stores the hyperparameters in TensorBoard's format, and in a file `hparams.yml` in a
        folder whose name is the current time."""
        import yaml

        self.writer.add_hparams(values, metric_dict={})
        self.writer.flush()
        folder = os.path.join(self.logging_dir, str(time.time()))
        os.makedirs(folder, exist_ok=True)
        # Serialise first, so that values that YAML cannot represent leave no file.
        text = yaml.dump(values)
        with open(os.path.join(folder, "hparams.yml"), "w", encoding="utf-8") as file:
            file.write(text)

    @on_main_process
    def log(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Logs numbers as scalars, strings as text, and dicts of numbers as several scalars under
        one name. `kwargs` are passed to the writer's method."""
        for name, value in listify(values).items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(name, value, global_step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.add_text(name, value, global_step=step, **kwargs)
            elif isinstance(value, dict):
                self.writer.add_scalars(name, value, global_step=step, **kwargs)
        self.writer.flush()

    @on_main_process
    def log_images(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Logs batches of images by name, in the form that `SummaryWriter.add_images` accepts."""
        for name, images in values.items():
            self.writer.add_images(name, images, global_step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        self.writer.close()


class _ProjectTracker(GeneralTracker):
    """The base class for services with an interface like that of W&B. The service's package has the
    tracker's name and the members `init` and `config`. Its runs have the methods `log` and
    `finish`. `kwargs` are passed to `init`."""

    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs

    @property
    def _package(self) -> Any:
        return importlib.import_module(self.name)

    @on_main_process
    def start(self) -> None:
        self.run = self._package.init(project=self.run_name, **self.init_kwargs)

    @property
    def tracker(self) -> Any:
        return self.run

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        self._package.config.update(values, allow_val_change=True)

    @on_main_process
    def log(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Passes values and `kwargs` to the `log` method of the service's run."""
        self.run.log(values, step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        self.run.finish()


class _PictureTracker(_ProjectTracker):
    """The base class for services whose package has an `Image` class."""

    @on_main_process
    def log_images(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Logs lists of arrays or PIL images by name."""
        for name, images in values.items():
            shown = [self._package.Image(image) for image in images]
            self.log({name: shown}, step=step, **kwargs)


class WandBTracker(_PictureTracker):
    """Logs to Weights & Biases. `kwargs` are passed to `wandb.init`."""

    name = "wandb"

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Logs a table, given as column names and rows, or as a data frame."""
        table = self._package.Table(columns=columns, data=data, dataframe=dataframe)
        self.log({table_name: table}, step=step, **kwargs)


class TrackioTracker(_ProjectTracker):
    """Logs to Trackio. The name of the run becomes Trackio's project. `kwargs` are passed to
    `trackio.init`."""

    name = "trackio"


class CometMLTracker(GeneralTracker):
    """Logs to Comet. The API key comes from Comet's own configuration. `kwargs` are passed to
    `comet_ml.start`, or to `comet_ml.Experiment` before version 3.41."""

    name = "comet_ml"
    requires_logging_directory = False

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs

    @on_main_process
    def start(self) -> None:
        import comet_ml

        can_start = compare_versions(parse(comet_ml.__version__), ">=", "3.41.0")
        make = comet_ml.start if can_start else comet_ml.Experiment
        self.writer = make(project_name=self.run_name, **self.init_kwargs)

    @property
    def tracker(self) -> Any:
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        self.writer.log_parameters(values)

    @on_main_process
    def log(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Logs numbers as metrics, dicts as several metrics, and strings as other values. `kwargs`
        are passed to the experiment's method."""
        if step is not None:
            self.writer.set_step(step)
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.writer.log_metric(name, value, step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.log_other(name, value, **kwargs)
            elif isinstance(value, dict):
                self.writer.log_metrics(value, step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        self.writer.end()


class AimTracker(GeneralTracker):
    """Logs to Aim, with a repository in `logging_dir`. `kwargs` are passed to `aim.Run`."""

    name = "aim"
    requires_logging_directory = True

    def __init__(
        self, run_name: str, logging_dir: str | os.PathLike | None = ".", **kwargs: Any
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.aim_repo_path = logging_dir
        self.init_kwargs = kwargs

    @on_main_process
    def start(self) -> None:
        from aim import Run

        self.writer = Run(repo=self.aim_repo_path, **self.init_kwargs)
        self.writer.name = self.run_name

    @property
    def tracker(self) -> Any:
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        self.writer["hparams"] = values

    @on_main_process
    def log(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Passes values to Aim. `kwargs` are passed to `Run.track`."""
        for name, value in values.items():
            self.writer.track(value, name=name, step=step, **kwargs)

    @on_main_process
    def log_images(
        self, values: dict, step: int | None = None, kwargs: dict[str, dict] | None = None
    ) -> None:
        """Logs images by name. An image is an array or a PIL image, or a pair of an image and its
        caption. `kwargs["aim_image"]` is passed to `aim.Image`, and `kwargs["track"]` is passed to
        `Run.track`."""
        import aim

        kwargs = kwargs or {}
        for name, value in values.items():
            image, caption = value if isinstance(value, tuple) else (value, "")
            made = aim.Image(image, caption=caption, **kwargs.get("aim_image", {}))
            self.writer.track(made, name=name, step=step, **kwargs.get("track", {}))

    @on_main_process
    def finish(self) -> None:
        self.writer.close()


class MLflowTracker(GeneralTracker):
    """Logs to a run of the MLflow experiment with this name, which is created if it does not exist.
    Artifacts are stored in `logging_dir`. MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID, MLFLOW_TAGS (JSON)
    and MLFLOW_NESTED_RUN override the arguments. With `run_id`, continues that run."""

    name = "mlflow"
    requires_logging_directory = False

    def __init__(
        self,
        experiment_name: str | None = None,
        logging_dir: str | os.PathLike | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | str | None = None,
        nested_run: bool | None = False,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__()
        found = os.environ.get
        tags = found("MLFLOW_TAGS", tags)
        nested = found("MLFLOW_NESTED_RUN", nested_run)
        self.experiment_name = found("MLFLOW_EXPERIMENT_NAME", experiment_name)
        self.logging_dir = logging_dir
        self.run_id = found("MLFLOW_RUN_ID", run_id)
        self.tags = json.loads(tags) if isinstance(tags, str) else tags
        self.nested_run = str_to_bool(nested) == 1 if isinstance(nested, str) else nested
        self.run_name = run_name
        self.description = description

    @on_main_process
    def start(self) -> None:
        import mlflow

        known = mlflow.search_experiments(filter_string=f"name = '{self.experiment_name}'")
        if known:
            experiment = known[0].experiment_id
        else:
            experiment = mlflow.create_experiment(
                self.experiment_name, artifact_location=self.logging_dir, tags=self.tags
            )
        self.active_run = mlflow.start_run(
            run_id=self.run_id,
            experiment_id=experiment,
            run_name=self.run_name,
            nested=self.nested_run,
            tags=self.tags,
            description=self.description,
        )

    @property
    def tracker(self) -> Any:
        return self.active_run

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        """Logs the parameters of the run. Skips parameters that are too long for MLflow, with a
        warning."""
        import mlflow
        from mlflow.utils import validation

        longest, at_once = validation.MAX_PARAM_VAL_LENGTH, validation.MAX_PARAMS_TAGS_PER_BATCH
        kept = []
        for name, value in values.items():
            if len(str(value)) <= longest:
                kept.append((name, value))
            else:
                logger.warning_once(
                    f'[MLflowTracker] The parameter "{name}" has {len(str(value))} characters, '
                    f"more than MLflow's limit of {longest}. It is not logged"
                )
        for start in range(0, len(kept), at_once):
            mlflow.log_params(dict(kept[start : start + at_once]))

    @on_main_process
    def log(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Logs numbers. Skips other values with a warning. `kwargs` are passed to `log_metrics`."""
        import mlflow

        metrics = {}
        for name, value in values.items():
            if isinstance(value, (int, float)):
                metrics[name] = value
            else:
                _warn_of("MLflowTracker", name, value)
        mlflow.log_metrics(metrics, step=step, **kwargs)

    @on_main_process
    def log_figure(self, figure: Any, artifact_file: str, **save_kwargs: Any) -> None:
        """Logs a figure as an artifact of the run."""
        import mlflow

        mlflow.log_figure(figure=figure, artifact_file=artifact_file, **save_kwargs)

    @on_main_process
    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Logs the contents of a folder as artifacts of the run."""
        import mlflow

        mlflow.log_artifacts(local_dir=local_dir, artifact_path=artifact_path)

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """Logs a file as an artifact of the run."""
        import mlflow

        mlflow.log_artifact(local_path=local_path, artifact_path=artifact_path)

    @on_main_process
    def finish(self) -> None:
        import mlflow

        mlflow.end_run()


class ClearMLTracker(GeneralTracker):
    """Logs to the current ClearML task, or to a new one. `kwargs` are passed to `Task.init`.
    CLEARML_PROJECT and CLEARML_TASK override the name."""

    name = "clearml"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.user_provided_run_name = run_name
        self._initialized_externally = False
        self.init_kwargs = kwargs

    @on_main_process
    def start(self) -> None:
        from clearml import Task

        self.task = Task.current_task()
        self._initialized_externally = bool(self.task)
        if not self.task:
            names = {
                "project_name": os.environ.get("CLEARML_PROJECT", self.user_provided_run_name),
                "task_name": os.environ.get("CLEARML_TASK", self.user_provided_run_name),
            }
            self.task = Task.init(**{**names, **self.init_kwargs})

    @property
    def tracker(self) -> Any:
        return self.task

    @on_main_process
    def store_init_configuration(self, values: dict) -> Any:
        return self.task.connect_configuration(values)

    @on_main_process
    def log(self, values: dict[str, int | float], step: int | None = None, **kwargs: Any) -> None:
        """Logs scalars at a step, or as single values if no step is passed. `eval_loss` becomes the
        series `eval` of `loss`. `test_` and `train_` are treated in the same way."""
        service = self.task.get_logger()
        for name, value in values.items():
            if not isinstance(value, (int, float)):
                _warn_of("ClearMLTracker", name, value)
            elif step is None:
                service.report_single_value(name=name, value=value, **kwargs)
            else:
                title, series = self._get_title_series(name)
                service.report_scalar(
                    title=title, series=series, value=value, iteration=step, **kwargs
                )

    @on_main_process
    def log_images(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Logs images by name, in the form that ClearML's `report_image` accepts."""
        service = self.task.get_logger()
        for name, image in values.items():
            title, series = self._get_title_series(name)
            service.report_image(title=title, series=series, iteration=step, image=image, **kwargs)

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Logs a table, given as a data frame or as rows. The first row contains the column names
        unless `columns` is passed."""
        table = dataframe
        if table is None:
            if data is None:
                raise ValueError("[ClearMLTracker.log_table] Pass either `data` or `dataframe`")
            table = [columns, *data] if columns else data
        title, series = self._get_title_series(table_name)
        self.task.get_logger().report_table(
            title=title, series=series, table_plot=table, iteration=step, **kwargs
        )

    @on_main_process
    def finish(self) -> None:
        """Closes the task, unless it was already running when the tracker started."""
        if self.task and not self._initialized_externally:
            self.task.close()

    @staticmethod
    def _get_title_series(name: str) -> tuple[str, str]:
        for series in ("eval", "test", "train"):
            if name.startswith(f"{series}_"):
                return name[len(series) + 1 :], series
        return name, "train"


class DVCLiveTracker(GeneralTracker):
    """Logs to `live`, or to a new `dvclive.Live`, to which `kwargs` are passed. The name of the run
    is not used."""

    name = "dvclive"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, live: Any | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.live = live
        self.init_kwargs = kwargs

    @on_main_process
    def start(self) -> None:
        from dvclive import Live

        if self.live is None:
            self.live = Live(**self.init_kwargs)

    @property
    def tracker(self) -> Any:
        return self.live

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        self.live.log_params(values)

    @on_main_process
    def log(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        """Logs values that DVCLive supports as metrics, and ends the step. Skips other values, with
        a warning."""
        from dvclive.plots import Metric

        if step is not None:
            self.live.step = step
        for name, value in values.items():
            if Metric.could_log(value):
                self.live.log_metric(name, value, **kwargs)
            else:
                _warn_of("DVCLiveTracker", name, value)
        self.live.next_step()

    @on_main_process
    def finish(self) -> None:
        self.live.end()


class SwanLabTracker(_PictureTracker):
    """Logs to SwanLab. `kwargs` are passed to `swanlab.init`."""

    name = "swanlab"

    @on_main_process
    def start(self) -> None:
        super().start()
        # SwanLab's pages show the framework that created a run.
        self._package.config["FRAMEWORK"] = "🤗Accelerate"


class JsonLinesTracker(GeneralTracker):
    """Writes `logging_dir/run_name/metrics.jsonl`, in the same format as C++ runs.
    docs/guide_observe.md describes this format. Also records checkpoints, and the step from which a
    run resumes. The file belongs to the tracker of this process that was started last, because a
    notebook cell may run again. Values for an earlier or finished tracker are discarded, with a
    warning."""

    name = "jsonl"
    requires_logging_directory = True
    _writers: ClassVar[weakref.WeakValueDictionary[str, JsonLinesTracker]] = (
        weakref.WeakValueDictionary()
    )

    def __init__(self, run_name: str, logging_dir: str | os.PathLike) -> None:
        super().__init__()
        self.run_name = run_name
        self.path = os.path.join(logging_dir, run_name, _C.METRICS_FILE)
        self.next_step = 0
        # None before `start`, and after the file was closed.
        self.file: _C.MetricsFile | None = None
        self._warned: set[str] = set()

    @on_main_process
    def start(self) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        earlier = self._writers.pop(os.path.realpath(self.path), None)
        if earlier is self:
            self.finish()
        elif earlier is not None:
            earlier.file = None
        self._writers[os.path.realpath(self.path)] = self
        self._warned.clear()
        self.file = _C.MetricsFile(self.path)
        self._write(
            "start",
            self.run_name,
            num_processes=PartialState().num_processes,
            attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )

    @property
    def tracker(self) -> Any:
        return self.file

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        self._write("store_configuration", _json(values))

    @on_main_process
    def log(self, values: dict, step: int | None = None) -> None:
        """Logs numbers, strings, booleans, and dicts of these as `name/inner`. Without a step, uses
        the step after the latest one."""
        if self.file is None:
            self._warn_once(
                f"[log] {', '.join(values)} and all later values are not written, because the "
                f"tracker 'jsonl' of {self.path} was finished or another Accelerator uses its "
                "file. Log before end_training(), and give each run its own project_dir"
            )
            return
        step = self.next_step if step is None else step
        self.next_step = max(self.next_step, step + 1)
        self._write("log", _json(values), step)

    @on_main_process
    def mark(self, event: str) -> None:
        """Records an event at the latest step."""
        self._write("mark", event, max(self.next_step - 1, 0))

    @on_main_process
    def resume(self, step: int) -> None:
        """Prepares for logging this step and later steps again."""
        self.next_step = step
        self._write("mark", "resume", step)

    @on_main_process
    def finish(self) -> None:
        self._write("finish")
        self.file = None

    def _write(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Calls a method of the open file. A full disk causes one warning."""
        if self.file is None:
            return
        try:
            getattr(self.file, method)(*args, **kwargs)
        except AccelerateError as error:
            reason = str(error).removeprefix("[tracking] ")
            self._warn_once(
                f"[tracker jsonl] Cannot write metrics: {reason}. The run continues without this "
                "tracker, and further failures are not shown"
            )

    def _warn_once(self, message: str) -> None:
        kind = message.partition("]")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, stacklevel=4)


def _json(values: dict) -> bytes:
    """Returns JSON in UTF-8. Lone surrogates, as in file names that are not UTF-8, become question
    marks."""
    return json.dumps(_plain(values), ensure_ascii=False).encode("utf-8", "replace")


def _plain(values: dict, prefix: str = "") -> dict[str, Any]:
    """Converts values to ones that JSON can represent. JSON has no NaN or infinity."""
    found: dict[str, Any] = {}
    for name, value in listify(values).items():
        if isinstance(value, dict):
            found.update(_plain(value, f"{prefix}{name}/"))
        elif isinstance(value, float) and not math.isfinite(value):
            texts = {math.inf: "Infinity", -math.inf: "-Infinity"}
            found[prefix + name] = texts.get(value, "NaN")
        elif value is None or isinstance(value, (bool, int, float, str)):
            found[prefix + name] = value
        else:
            found[prefix + name] = str(value)
    return found


LOGGER_TYPE_TO_CLASS: dict[str, type[GeneralTracker]] = {
    "aim": AimTracker,
    "comet_ml": CometMLTracker,
    "mlflow": MLflowTracker,
    "tensorboard": TensorBoardTracker,
    "wandb": WandBTracker,
    "clearml": ClearMLTracker,
    "dvclive": DVCLiveTracker,
    "swanlab": SwanLabTracker,
    "trackio": TrackioTracker,
    "jsonl": JsonLinesTracker,
}


def register_tracker_class(tracker_class: type[GeneralTracker]) -> None:
    """Makes `log_with` accept the class by its `name`. The arguments of the class are the name of
    the project, the logging directory if the class requires one, and its `init_kwargs`."""
    if not (isinstance(tracker_class, type) and issubclass(tracker_class, GeneralTracker)):
        raise ValueError(
            f"[register_tracker_class] {tracker_class} is not a subclass of GeneralTracker. Derive "
            "it from this class"
        )
    for attribute in ("name", "requires_logging_directory"):
        if getattr(tracker_class, attribute, None) in (None, ""):
            raise ValueError(
                f"[register_tracker_class] {tracker_class.__name__} has no `{attribute}`. Define "
                "it in the class"
            )
    if tracker_class.name in LOGGER_TYPE_TO_CLASS:
        warnings.warn(
            f"[register_tracker_class] A tracker '{tracker_class.name}' is already registered. "
            f"{tracker_class} replaces it",
            stacklevel=2,
        )
    LOGGER_TYPE_TO_CLASS[tracker_class.name] = tracker_class


def filter_trackers(
    log_with: Any, logging_dir: str | os.PathLike | None = None
) -> list[LoggerType | str | GeneralTracker]:
    """Returns the trackers of `log_with` that can be started, without duplicates. `log_with` is one
    tracker or a list of trackers, which are names, `LoggerType`s or objects. "all" means every
    tracker whose package is installed. Raises an error if a name is unknown, or if a tracker needs
    a `logging_dir` but none is passed."""
    if log_with is None:
        return []
    asked = list(log_with) if isinstance(log_with, (list, tuple)) else [log_with]
    own = [tracker for tracker in asked if isinstance(tracker, GeneralTracker)]
    if "all" in asked or LoggerType.ALL in asked:
        return [*own, *get_available_trackers()]
    found: list[LoggerType | str | GeneralTracker] = []
    for tracker in asked:
        if isinstance(tracker, GeneralTracker):
            found.append(tracker)
            continue
        if tracker in LoggerType:
            tracker = LoggerType(tracker)
            if tracker not in get_available_trackers():
                logger.debug(f"[filter_trackers] The package of {tracker} is not installed")
                continue
        elif str(tracker) not in LOGGER_TYPE_TO_CLASS:
            raise ValueError(
                f"[filter_trackers] Unsupported logging capability: {tracker}. Choose between "
                f"{[LoggerType.ALL.value, *LOGGER_TYPE_TO_CLASS]}, or register your own with "
                "register_tracker_class"
            )
        if tracker in found:
            continue
        if LOGGER_TYPE_TO_CLASS[str(tracker)].requires_logging_directory and logging_dir is None:
            raise ValueError(
                f"[filter_trackers] Logging with `{tracker}` requires a `logging_dir` to be passed "
                "in. Pass project_dir, or ProjectConfiguration(logging_dir=...)"
            )
        found.append(tracker)
    return found


def _warn_of(tracker: str, name: str, value: Any) -> None:
    logger.warning_once(
        f'[{tracker}] "{name}" is {value!r} of {type(value)}, not a number. It is not logged'
    )


__getattr__ = placeholders_for(__name__)
