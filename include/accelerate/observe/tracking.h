// SPDX-License-Identifier: Apache-2.0
// Trackers, which store the metrics of a run in files, TensorBoard, MLflow or a
// custom destination. docs/guide_observe.md describes the folder of a run.
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

/// A number, string or boolean that is tracked under a name. A tensor with one
/// element is read immediately, so the host waits for it. The function that the
/// value is passed to rejects other tensors.
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

  /// Throws a `UsageError` if the value was created from a tensor that is not a
  /// single number: "[where] 'name' is a tensor of shape [2], expected ...".
  /// `Trackers` and `ProgressBar` call it.
  void check(const char* where, const std::string& name) const;
  const Value& get() const { return value_; }
  /// The value as a number. Booleans are 1 and 0. Empty for a string.
  std::optional<double> number() const;
  /// The value as text. Numbers have as many digits as are needed to restore
  /// them exactly.
  std::string text() const;

 private:
  void refuse_tensor(const std::vector<int64_t>& sizes, bool is_complex);

  Value value_;
  /// Describes what was passed instead of a value. Empty if the value is valid.
  std::string problem_;
};

/// Names and values, in the order in which they are logged. If a name appears
/// twice, the last value counts, and one warning is printed.
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
  /// `logging_dir / project`. This folder exists.
  std::filesystem::path folder = {};
  int num_processes = 1;
  /// How often the launcher has restarted the job.
  int attempt = 0;
};

/// A destination for metrics. Derive custom trackers from this class and pass
/// them in `TrackingOptions::log_with`. They are called from one thread of the
/// main process. If a tracker throws, the first error is printed to stderr, and
/// the run continues.
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
  /// Stores the hyper-parameters.
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
  /// Marks an event on the time axis, such as "checkpoint".
  virtual void mark(const std::string& event, int64_t step);
  /// Called when the run resumes from a checkpoint. Values for `step` and later
  /// steps will be logged again.
  virtual void resume(int64_t step);
  /// Returns what the tracker needs to continue after the run is resumed, such
  /// as the run id on a server. It is saved in checkpoints. `load_state` is
  /// called after `start` and before `resume`.
  virtual std::string state() const;
  virtual void load_state(const std::string& state);
  /// Ends the run. No other function is called after it.
  virtual void finish();
};

/// The name of a tracker, or a tracker object.
class ACCELERATE_API TrackerChoice {
 public:
  TrackerChoice(const char* name) : name_(name) {}
  TrackerChoice(std::string name) : name_(std::move(name)) {}
  template <std::derived_from<Tracker> T>
  TrackerChoice(std::shared_ptr<T> tracker) : tracker_(std::move(tracker)) {}

  const std::string& name() const { return name_; }
  /// The object, or null if the tracker was chosen by name.
  const std::shared_ptr<Tracker>& tracker() const { return tracker_; }

 private:
  std::string name_;
  std::shared_ptr<Tracker> tracker_;
};

/// Options of the tracker "mlflow".
struct ACCELERATE_API MlflowOptions {
  /// The URL of the server, such as `http://host:5000`. Default:
  /// MLFLOW_TRACKING_URI.
  std::string tracking_uri = {};
  /// The name of the experiment, which is created if it is missing. Default:
  /// MLFLOW_EXPERIMENT_NAME, or the name of the project.
  std::string experiment = {};
  /// The name of a new run. If empty, the server chooses one.
  std::string run_name = {};
  /// The id of the run to continue. Default: MLFLOW_RUN_ID. A resumed run uses
  /// its previous id.
  std::string run_id = {};
};

struct ACCELERATE_API TrackingOptions {
  /// Names ("jsonl", "csv", "tensorboard", "mlflow") or custom trackers.
  std::vector<TrackerChoice> log_with = {"jsonl"};
  /// The run's folder is `logging_dir / project`.
  std::filesystem::path logging_dir = "runs";
  /// The hyper-parameters.
  TrackedValues configuration = {};
  MlflowOptions mlflow = {};
};

/// The names that `TrackingOptions::log_with` accepts.
ACCELERATE_API std::vector<std::string> tracker_names();

/// The trackers of one run. `Accelerator::init_trackers` creates them on the
/// main process. A program without an `Accelerator` creates this object itself.
/// Use it from one thread.
///
///     accelerate::Trackers trackers(
///         "sky", {.log_with = {"jsonl", "tensorboard"}});
///     trackers.log({{"loss", 0.5}, {"lr", 1e-3}}, 10);
class ACCELERATE_API Trackers {
 public:
  /// Creates an object without trackers, which discards everything that is
  /// logged.
  Trackers();
  /// Starts the trackers of `options`. Throws `UsageError` if a name is
  /// unknown, if two trackers have the same name, if the project is not a plain
  /// folder name, or if unfinished trackers of this process already write the
  /// same files, because the lines of two runs would be mixed.
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

  /// If no step is passed, values are logged at the step after the latest one,
  /// starting at 0 (or at the step of the checkpoint of a resumed run), and
  /// pictures and histograms are logged at the latest step. Throws `UsageError`
  /// if a tensor is not a single number, even if there are no trackers.
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
  /// Returns the tracker with this name. If there are no trackers, as on
  /// processes other than the main one, returns a tracker that does nothing.
  /// Throws `UsageError` if the name is unknown.
  Tracker& get(const std::string& name) const;
  bool empty() const;
  void finish();

  /// The next step, and what each tracker needs to resume, by name.
  struct State {
    int64_t next_step = 0;
    std::map<std::string, std::string> trackers = {};
  };
  State state() const;
  /// Resumes from `state`. A tracker that is not part of `state` starts from
  /// the beginning.
  void load_state(const State& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace accelerate
