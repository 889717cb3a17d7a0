// SPDX-License-Identifier: Apache-2.0
// Where the metrics of a run go: files, TensorBoard, MLflow, trackers of your
// own. docs/guide_observe.md says what a run's folder holds.
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

/// A number, a text or a switch that is tracked under a name. Tensors of one
/// element are read, for which the host waits; those that are no one real
/// number are refused by the call that gets them together with their name.
class ACCELERATE_API TrackedValue {
 public:
  using Value = std::variant<double, int64_t, bool, std::string>;

  TrackedValue(bool value) : value_(value) {}
  /// An unsigned number that does not fit into int64 is taken as a double.
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

  /// Throws `UsageError` where it was made of a tensor that is no one number:
  /// "[where] 'name' is a tensor of shape [2], expected ...". `Trackers` and
  /// `ProgressBar` ask.
  void check(const char* where, const std::string& name) const;
  const Value& get() const { return value_; }
  /// Switches are 1 and 0; nothing for a text.
  std::optional<double> number() const;
  /// As people write it; numbers with all digits that they need.
  std::string text() const;

 private:
  void refuse_tensor(const std::vector<int64_t>& sizes, bool is_complex);

  Value value_;
  /// What it is instead of a value; empty where it is one.
  std::string problem_;
};

/// In the order in which they were given. Of a name that is given twice the
/// last value counts, which is said once.
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
  /// `logging_dir / project`, which is there.
  std::filesystem::path folder = {};
  int num_processes = 1;
  /// How often the launcher has started the job again.
  int attempt = 0;
};

/// One place where metrics go. Derive yours from it and hand it over in
/// `TrackingOptions::log_with`. Calls come from one thread of the main process.
/// What a method throws is said on stderr, once for each tracker, and the run
/// goes on.
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
  /// How these numbers are spread.
  virtual void log_histogram(
      const std::string& name,
      std::span<const double> values,
      int64_t step);
  /// Something that happened, for the time axis: "checkpoint".
  virtual void mark(const std::string& event, int64_t step);
  /// The run goes on from a checkpoint: what was logged for `step` and later
  /// steps comes again.
  virtual void resume(int64_t step);
  /// What a resumed run needs to go on in the same place, such as the number
  /// that a server gave the run. Kept in checkpoints; `load_state` comes after
  /// `start` and before `resume`.
  virtual std::string state() const;
  virtual void load_state(const std::string& state);
  /// Ends the run; nothing comes after it.
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
  /// Empty for one that is given by its name.
  const std::shared_ptr<Tracker>& tracker() const { return tracker_; }

 private:
  std::string name_;
  std::shared_ptr<Tracker> tracker_;
};

/// For the tracker "mlflow".
struct ACCELERATE_API MlflowOptions {
  /// Of the server, `http://host:5000`; else MLFLOW_TRACKING_URI.
  std::string tracking_uri = {};
  /// Else MLFLOW_EXPERIMENT_NAME, else the project. Made where there is none.
  std::string experiment = {};
  /// Of a new run; the server invents one otherwise.
  std::string run_name = {};
  /// A run to go on with; else MLFLOW_RUN_ID. A resumed run knows its own.
  std::string run_id = {};
};

struct ACCELERATE_API TrackingOptions {
  /// "jsonl", "csv", "tensorboard", "mlflow", or objects of your own.
  std::vector<TrackerChoice> log_with = {"jsonl"};
  /// The run's folder is `logging_dir / project`.
  std::filesystem::path logging_dir = "runs";
  /// Hyper-parameters.
  TrackedValues configuration = {};
  MlflowOptions mlflow = {};
};

/// The names that `TrackingOptions::log_with` takes.
ACCELERATE_API std::vector<std::string> tracker_names();

/// The trackers of one run. `Accelerator::init_trackers` makes them for the
/// main process; a program without an `Accelerator` makes its own. Used by one
/// thread.
///
///     accelerate::Trackers trackers(
///         "sky", {.log_with = {"jsonl", "tensorboard"}});
///     trackers.log({{"loss", 0.5}, {"lr", 1e-3}}, 10);
class ACCELERATE_API Trackers {
 public:
  /// Nobody: what is logged goes nowhere.
  Trackers();
  /// Starts them. Throws `UsageError` on a name that there is not, on two
  /// trackers of one name, on a project that is no plain name of a folder, and
  /// where other trackers of this process write such files into the same folder
  /// and are not finished: lines of two runs would mix.
  Trackers(
      const std::string& project,
      TrackingOptions options,
      int num_processes = 1,
      int attempt = 0);
  /// Finishes.
  ~Trackers();
  /// What is left behind is nobody.
  Trackers(Trackers&&) noexcept;
  Trackers& operator=(Trackers&&) noexcept;

  // What comes after `finish` goes nowhere, which is said once on stderr.

  /// Without a step, values are of the one after the latest, from 0 (a resumed
  /// run goes on where its checkpoint was); pictures and histograms of the
  /// latest. Throws `UsageError` on a tensor that is no one number, also where
  /// nobody keeps it.
  void log(const TrackedValues& values, std::optional<int64_t> step = {});
  void log_images(
      const std::string& name,
      const std::vector<TrackedImage>& images,
      std::optional<int64_t> step = {});
  void log_histogram(
      const std::string& name,
      std::span<const double> values,
      std::optional<int64_t> step = {});
  /// At the latest step.
  void mark(const std::string& event);
  /// The tracker of this name; where there are none, as on other processes than
  /// the main one, a tracker that does nothing. Throws `UsageError` on another
  /// name.
  Tracker& get(const std::string& name) const;
  bool empty() const;
  void finish();

  /// The step that comes next, and what each tracker needs to go on, by name.
  struct State {
    int64_t next_step = 0;
    std::map<std::string, std::string> trackers = {};
  };
  State state() const;
  /// Goes on from there. A tracker that was not there when it was saved begins
  /// anew.
  void load_state(const State& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace accelerate
