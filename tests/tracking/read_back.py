# SPDX-License-Identifier: Apache-2.0
"""What the C++ trackers wrote, read by others: TensorBoard's own reader, a real MLflow server,
Python's json and csv.

    read_back.py PROGRAM

ACCELERATE_TRACKERS_PYTHON names a Python with tensorboard and mlflow; without it the test exits
77, which CTest shows as skipped."""
from __future__ import annotations

import contextlib
import csv
import http.server
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

LIMIT_SECONDS = 500
STEPS = [0, 1, 2, 3, 4, 5]


def run(program: str, folder: pathlib.Path, trackers: list[str], **variables: str) -> str:
    said = ""
    for start in ("first", "again"):
        result = subprocess.run([program, str(folder), start, *trackers], text=True,
                                env={**os.environ, **variables}, capture_output=True,
                                timeout=LIMIT_SECONDS)
        assert result.returncode == 0, result.stderr
        said += result.stderr
    return said


def check_json_lines(folder: pathlib.Path) -> None:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["time"] > 1.7e9 for line in lines)
    events = [(line["event"], line.get("step")) for line in lines if "event" in line]
    assert events == [("start", None), ("configuration", None), ("checkpoint", 2), ("start", None),
                      ("configuration", None), ("resume", 3), ("finish", None)], events
    assert [line["attempt"] for line in lines if line.get("event") == "start"] == [0, 1]
    assert lines[0]["schema"] == 1 and lines[0]["num_processes"] == 2
    assert lines[1]["values"] == {"lr": 1e-3, "layers": 4, "name": 'sky, "blue"', "is_fast": True}
    # The rule of docs/guide_observe.md: a resume takes back its step and later ones.
    kept: dict[int, dict] = {}
    for line in lines:
        if line.get("event") == "resume":
            kept = {step: values for step, values in kept.items() if step < line["step"]}
        elif "values" in line and "step" in line:
            kept.setdefault(line["step"], {}).update(line["values"])
    assert sorted(kept) == STEPS
    assert [kept[step]["loss"] for step in STEPS] == [1 / (step + 1) for step in STEPS]
    assert [kept[step]["again"] for step in STEPS] == [False] * 3 + [True] * 3
    assert kept[2]["none"] == "NaN" and kept[2]["note"] == 'a\nline, "quoted"'


def check_csv(folder: pathlib.Path) -> None:
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [(int(row["step"]), float(row["value"])) for row in rows if row["name"] == "loss"]
    assert losses == [(step, 1 / (step + 1)) for step in [0, 1, 2, 3, 4, 3, 4, 5]], losses
    assert [row["step"] for row in rows if row["name"] == "resume"] == ["3"]
    assert [row["value"] for row in rows if row["name"] == "note"] == ['a line, "quoted"']


def check_tensorboard(folder: pathlib.Path) -> None:
    import numpy
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    assert len(list(folder.glob("events.out.tfevents.*"))) == 2
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    for name, expected in (("loss", lambda step: 1 / (step + 1)), ("seen", lambda step: 8 * step),
                           ("again", lambda step: step >= 3)):
        found = events.Scalars(name)
        assert [point.step for point in found] == STEPS, (name, found)
        assert numpy.allclose([point.value for point in found], [expected(s) for s in STEPS])
    note = events.Tensors("note")[0]
    assert (note.step, note.tensor_proto.string_val) == (2, [b'a\nline, "quoted"'])
    assert events.summary_metadata["note"].plugin_data.plugin_name == "text"

    numbers = numpy.arange(-50, 50) * 0.1
    spread = events.Histograms("weights")[0].histogram_value
    assert (spread.num, spread.min, spread.max) == (100, numbers.min(), numbers.max())
    assert numpy.isclose(spread.sum, numbers.sum())
    assert numpy.isclose(spread.sum_squares, (numbers**2).sum())
    edges = numpy.concatenate([[-numpy.inf], spread.bucket_limit])
    expected = [((numbers > low) & (numbers <= high)).sum() for low, high in zip(edges, edges[1:])]
    assert list(spread.bucket) == expected
    image = events.Images("pixel")[0]
    assert (image.step, image.width, image.height) == (2, 1, 1)
    assert image.encoded_image_string.startswith(b"\x89PNG")

    def plugin(tag: str) -> HParamsPluginData:
        data = events.summary_metadata[f"_hparams_/{tag}"].plugin_data
        assert data.plugin_name == "hparams"
        return HParamsPluginData.FromString(data.content)

    given = plugin("session_start_info").session_start_info.hparams
    assert given["lr"].number_value == 1e-3 and given["layers"].number_value == 4
    assert given["name"].string_value == 'sky, "blue"' and given["is_fast"].bool_value is True
    infos = plugin("experiment").experiment.hparam_infos
    assert [info.name for info in infos] == ["lr", "layers", "name", "is_fast"]
    assert plugin("session_end_info").session_end_info.status == 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_mlflow(program: str, folder: pathlib.Path) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port",
         uri.rpartition(":")[2], "--workers", "1", "--backend-store-uri",
         f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + LIMIT_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=5)
                break
            except OSError:
                assert time.monotonic() < end and server.poll() is None, "no MLflow server"
                time.sleep(0.2)
        said = run(program, folder, ["mlflow"], MLFLOW_TRACKING_URI=uri)
        assert said.count("[tracker mlflow]") == 1 and "'note' is a string" in said, said
        check_mlflow_run(uri, "sky")
        # A server that takes its time loses nothing.
        with serving(lambda request: forwarded(uri, request)) as slow:
            run(program, folder, ["mlflow"], MLFLOW_TRACKING_URI=slow,
                MLFLOW_EXPERIMENT_NAME="slow")
        check_mlflow_run(uri, "slow")
    finally:
        os.killpg(server.pid, 15)
        server.wait(timeout=60)


def check_mlflow_run(uri: str, experiment_name: str) -> None:
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name(experiment_name)
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params == {"lr": "0.001", "layers": "4", "name": 'sky, "blue"',
                                 "is_fast": "true"}
    assert found.data.tags["accelerate.resumed_at_step"] == "3"
    history = client.get_metric_history(found.info.run_id, "loss")
    points = [(point.step, point.value) for point in history]
    # Values that were sent before the first process died are there beside those that came again.
    assert set(points) == {(step, 1 / (step + 1)) for step in STEPS}, points


Answer = tuple[int, bytes]


@contextlib.contextmanager
def serving(answer: Callable[[http.server.BaseHTTPRequestHandler], Answer]) -> Iterator[str]:
    """A server on loopback that answers each request so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = answer(self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def body_of(request: http.server.BaseHTTPRequestHandler) -> bytes:
    return request.rfile.read(int(request.headers["Content-Length"]))


def forwarded(uri: str, request: http.server.BaseHTTPRequestHandler) -> Answer:
    asked = urllib.request.Request(uri + request.path, body_of(request),
                                   {"Content-Type": "application/json"})
    time.sleep(1)
    try:
        with urllib.request.urlopen(asked, timeout=LIMIT_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def check_mlflow_that_is_ill(program: str, folder: pathlib.Path) -> None:
    def fail(request: http.server.BaseHTTPRequestHandler) -> Answer:
        body_of(request)
        return 500, b"<h1>\x1b[2J\n[RANK 0] INFO</h1>"

    with serving(fail) as uri:
        said = run(program, folder, ["jsonl", "mlflow"], MLFLOW_TRACKING_URI=uri)
    # One line by each of the two starts, in which the server's words move no cursor, and one of a
    # text that is no metric.
    assert said.count("the server answered 500 to ") == 2 and said.count("\n") == 3, said
    assert r"<h1>\x1b[2J\x0a[RANK 0] INFO</h1>" in said and "\x1b" not in said, said
    assert "values were not sent in time and are lost" in said, said
    check_json_lines(folder / "sky")


def check_mlflow_that_is_gone(program: str, folder: pathlib.Path) -> None:
    said = run(program, folder, ["jsonl", "mlflow"],
               MLFLOW_TRACKING_URI=f"http://127.0.0.1:{free_port()}")
    # Once by each of the two starts; the run continues and the other tracker has all values.
    assert said.count("No answer from") == 2, said
    check_json_lines(folder / "sky")


def main() -> None:
    program = sys.argv[1]
    python = os.environ.get("ACCELERATE_TRACKERS_PYTHON")
    if not python:
        print("skipped: ACCELERATE_TRACKERS_PYTHON is not set; ./dev test sets it")
        sys.exit(77)
    if pathlib.Path(sys.prefix) != pathlib.Path(python).parents[1]:
        os.execv(python, [python, *sys.argv])
    with tempfile.TemporaryDirectory() as name:
        for case in ("files", "mlflow", "gone", "ill"):
            (pathlib.Path(name) / case).mkdir()
        files = pathlib.Path(name) / "files"
        said = run(program, files, ["jsonl", "csv", "tensorboard"])
        assert said == "", said
        check_json_lines(files / "sky")
        check_csv(files / "sky")
        check_tensorboard(files / "sky")
        check_mlflow_that_is_gone(program, pathlib.Path(name) / "gone")
        check_mlflow_that_is_ill(program, pathlib.Path(name) / "ill")
        check_mlflow(program, pathlib.Path(name) / "mlflow")


main()
