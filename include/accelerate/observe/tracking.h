// SPDX-License-Identifier: Apache-2.0
// Trackers, which store the metrics of a run: files, TensorBoard, MLflow,
// custom ones. docs/guide_observe.md describes a run's folder.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// A number, string or boolean that is tracked under a name. Tensors with one
/// element are read, and the host waits for them. Other tensors are rejected by
/// the call that receives the value and its name.
class ACCELERATE_API TrackedValue {
 public:
  using Value = std::variant<double, int64_t, bool, std::string>;

  TrackedValue(bool value) : value_(value) {}
  /// An unsigned number that does not fit into int64 becomes a double.
  template <std::integral Number>
  TrackedValue(Number value) : value_(static_cast<int64_t>(value)) {
    if (!std::in_range<int64_t>(+value)) {
      value_ = static_cast<double>(value);
    }
  }
  TrackedValue(std::floating_point auto value)
      : value_(static_cast<double>(value)) {}
  TrackedValue(const char* value) : value_(std::string(value)) {}
  TrackedValue(std::string value) : value_(std::move(value)) {}
  template <class Tensor>
  requires requires(const Tensor& tensor) {
    tensor.template item<double>();
    tensor.sizes();
  }
  TrackedValue(const Tensor& tensor) {
    if (!tensor.defined()) {
      problem_ = "an undefined tensor";
    } else if (tensor.numel() != 1 || tensor.is_complex()) {
      const auto sizes = tensor.sizes();
      refuse_tensor({sizes.begin(), sizes.end()}, tensor.is_complex());
    } else {
      value_ = tensor.template item<double>();
    }
  }

  /// Throws `UsageError` if it was created from a tensor that is not a single
  /// number: "[where] 'name' is a tensor of shape [2], expected ...". Called by
  /// `Trackers` and `ProgressBar`.
  void check(const char* where, const std::string& name) const;
  const Value& get() const { return value_; }
  /// The value as a number: booleans are 1 and 0. Empty for a string.
  std::optional<double> number() const;
  /// The value for display. Numbers have all digits that are needed to restore
  /// them.
  std::string text() const;

 private:
  void refuse_tensor(const std::vector<int64_t>& sizes, bool is_complex);

  Value value_;
  /// A description of what was passed instead of a value; empty if valid.
  std::string problem_;
};

/// In the given order. If a name is given twice, the last value counts and a
/// warning appears once.
using TrackedValues = std::vector<std::pair<std::string, TrackedValue>>;

/// A picture as the bytes of a PNG file.
struct ACCELERATE_API TrackedImage {
  int width = 0;
  int height = 0;
  std::string png = {};
};

/// The run that a tracker is started for.
struct ACCELERATE_API TrackedRun {
  std::string project = {};
  /// `logging_dir / project`, which exists.
  std::filesystem::path folder = {};
  int num_processes = 1;
  /// How often the launcher has restarted the job.
  int attempt = 0;
};

/// A destination of metrics. Derive your own from it and pass it in
/// `TrackingOptions::log_with`. Called from one thread of the main process. An
/// exception is printed on stderr, once per tracker, and the run continues.
///
///     struct Printer : accelerate::Tracker {
///       std::string name() const override { return "printer"; }
///       void log(const accelerate::TrackedValues& values, int64_t step)
///           override {
///         for (const auto& [name, value] : values) {
///           std::cout << step << ' ' << name << ' ' << value.text() << '\n';
///         }
///       }
///     };
class ACCELERATE_API Tracker {
 public:
  virtual ~Tracker();
  virtual std::string name() const = 0;
  /// Opens the run.
  virtual void start(const TrackedRun& run);
  /// Hyper-parameters.
  virtual void store_configuration(const TrackedValues& values);
  virtual void log(const TrackedValues& values, int64_t step) = 0;
  virtual void log_images(
      const std::string& name,
      const std::vector<TrackedImage>& images,
      int64_t step);
  /// Logs the distribution of these values.
  virtual void log_histogram(
      const std::string& name,
      std::span<const double> values,
      int64_t step);
  /// An event for the time axis, such as "checkpoint".
  virtual void mark(const std::string& event, int64_t step);
  /// The run resumes from a checkpoint: values for `step` and later steps will
  /// be logged again.
  virtual void resume(int64_t step);
  /// What a resumed run needs to continue where it stopped, such as the run id
  /// on a server. Saved in checkpoints; `load_state` is called after `start`
  /// and before `resume`.
  virtual std::string state() const;
  virtual void load_state(const std::string& state);
  /// Ends the run; no calls follow.
  virtual void finish();
};

/// A tracker by its name, or an object.
class ACCELERATE_API TrackerChoice {
 public:
  TrackerChoice(const char* name) : name_(name) {}
  TrackerChoice(std::string name) : name_(std::move(name)) {}
  template <std::derived_from<Tracker> T>
  TrackerChoice(std::shared_ptr<T> tracker) : tracker_(std::move(tracker)) {}

  const std::string& name() const { return name_; }
  /// The object; null if the tracker was chosen by name.
  const std::shared_ptr<Tracker>& tracker() const { return tracker_; }

 private:
  std::string name_;
  std::shared_ptr<Tracker> tracker_;
};

/// Options of the tracker "mlflow".
struct ACCELERATE_API MlflowOptions {
  /// The server, `http://host:5000`; default: MLFLOW_TRACKING_URI.
  std::string tracking_uri = {};
  /// Default: MLFLOW_EXPERIMENT_NAME, or the project. Created if missing.
  std::string experiment = {};
  /// The name of a new run; chosen by the server if empty.
  std::string run_name = {};
  /// The run to continue; default: MLFLOW_RUN_ID. A resumed run uses its own.
  std::string run_id = {};
};

struct ACCELERATE_API TrackingOptions {
  /// "jsonl", "csv", "tensorboard", "mlflow", or custom objects.
  std::vector<TrackerChoice> log_with = {"jsonl"};
  /// The run's folder is `logging_dir / project`.
  std::filesystem::path logging_dir = "runs";
  /// Hyper-parameters.
  TrackedValues configuration = {};
  MlflowOptions mlflow = {};
};

/// The names that `TrackingOptions::log_with` accepts.
ACCELERATE_API std::vector<std::string> tracker_names();

/// The trackers of one run. `Accelerator::init_trackers` creates them on the
/// main process; a program without an `Accelerator` creates its own. Used by
/// one thread.
///
///     accelerate::Trackers trackers(
///         "sky", {.log_with = {"jsonl", "tensorboard"}});
///     trackers.log({{"loss", 0.5}, {"lr", 1e-3}}, 10);
class ACCELERATE_API Trackers {
 public:
  /// No trackers: everything logged is discarded.
  Trackers();
  /// Starts the trackers of `options`. Throws `UsageError` if a name is
  /// unknown, two trackers have the same name, the project is not a plain
  /// folder name, or other unfinished trackers of this process write the same
  /// files in the same folder, which would mix the lines of two runs.
  Trackers(
      const std::string& project,
      TrackingOptions options,
      int num_processes = 1,
      int attempt = 0);
  /// Finishes the trackers.
  ~Trackers();
  /// The moved-from object has no trackers.
  Trackers(Trackers&&) noexcept;
  Trackers& operator=(Trackers&&) noexcept;

  // After `finish`, values are discarded, with one warning on stderr.

  /// Without a step, values are logged at the step after the latest, starting
  /// at 0 (or where a resumed run's checkpoint was); pictures and histograms at
  /// the latest. Throws `UsageError` on a tensor that is not a single number,
  /// even if there are no trackers.
  void log(const TrackedValues& values, std::optional<int64_t> step = {});
  void log_images(
      const std::string& name,
      const std::vector<TrackedImage>& images,
      std::optional<int64_t> step = {});
  void log_histogram(
      const std::string& name,
      std::span<const double> values,
      std::optional<int64_t> step = {});
  /// Marks an event at the latest step.
  void mark(const std::string& event);
  /// The tracker with this name. Without trackers, as on processes other than
  /// the main one, a tracker that does nothing. Throws `UsageError` if the name
  /// is unknown.
  Tracker& get(const std::string& name) const;
  bool empty() const;
  void finish();

  /// The next step, and what each tracker needs to resume, by name.
  struct State {
    int64_t next_step = 0;
    std::map<std::string, std::string> trackers = {};
  };
  State state() const;
  /// Resumes from `state`. A tracker that did not exist at saving starts from
  /// the beginning.
  void load_state(const State& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace accelerate
