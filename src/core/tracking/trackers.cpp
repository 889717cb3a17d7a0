// SPDX-License-Identifier: Apache-2.0
#include "accelerate/observe/tracking.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <iostream>
#include <mutex>
#include <set>
#include <string_view>

#include "accelerate/error.h"
#include "accelerate/observe/logger.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/tracking/builtin.h"
#include "core/tracking/run_folder.h"

namespace accelerate {
namespace {

struct BuiltinTracker {
  const char* name;
  std::shared_ptr<Tracker> (*make)(const TrackingOptions&);
  /// Whether the tracker writes into the run's folder.
  bool fills_folder;
};

constexpr BuiltinTracker kBuiltinTrackers[] = {
    {kJsonLinesTracker, make_json_lines_tracker, true},
    {"csv", make_csv_tracker, true},
    {"tensorboard", make_tensorboard_tracker, true},
    {"mlflow", make_mlflow_tracker, false},
};

} // namespace

/// The exclusive right of one tracker of this process to write into a folder.
class FolderClaim {
 public:
  FolderClaim(const std::filesystem::path& folder, const std::string& tracker) {
    std::error_code ignored;
    path_ = std::filesystem::weakly_canonical(
                std::filesystem::absolute(folder, ignored), ignored) /
            tracker;
    auto& claims = Claims::instance();
    const std::lock_guard lock(claims.mutex);
    if (!claims.paths.insert(path_).second) {
      throw UsageError(str_cat(
          "[init_trackers] Another '",
          tracker,
          "' tracker of this process already writes to '",
          printable(folder.string()),
          "'. Call the other Accelerator's end_training() first, or give this "
          "Accelerator its own project"));
    }
  }
  ~FolderClaim() {
    auto& claims = Claims::instance();
    const std::lock_guard lock(claims.mutex);
    claims.paths.erase(path_);
  }
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

 private:
  // Never destroyed, because trackers may be static objects.
  struct Claims {
    static Claims& instance() {
      static auto* claims = new Claims;
      return *claims;
    }
    std::mutex mutex;
    std::set<std::filesystem::path> paths;
  };
  std::filesystem::path path_;
};

namespace {

/// A tracker for ranks that log nothing.
class NoTracker : public Tracker {
 public:
  std::string name() const override { return "none"; }
  void log(const TrackedValues&, int64_t) override {}
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

const BuiltinTracker& find_builtin(const std::string& name) {
  for (const auto& row : kBuiltinTrackers) {
    if (name == row.name) {
      return row;
    }
  }
  throw UsageError(str_cat(
      "[init_trackers] Unknown tracker '",
      printable(name),
      "'. Use one of ",
      joined(tracker_names()),
      ", or pass your own tracker object"));
}

bool has_repeats(const TrackedValues& values) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : values) {
    names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return std::adjacent_find(names.begin(), names.end()) != names.end();
}

void check_values(const char* where, const TrackedValues& values) {
  for (const auto& [name, value] : values) {
    value.check(where, name);
  }
}

} // namespace

void check_project(const std::string& project) {
  const bool is_blank = project.find_first_not_of(" \t") == std::string::npos;
  if (is_blank || project == "." || project == ".." ||
      project.find('/') != std::string::npos || printable(project) != project) {
    throw UsageError(str_cat(
        "[init_trackers] The project name '",
        printable(project),
        "' cannot be used as a folder name. Choose a plain name"));
  }
}

void TrackedValue::refuse_tensor(
    const std::vector<int64_t>& sizes,
    bool is_complex) {
  std::string shape;
  for (const auto size : sizes) {
    shape += str_cat(shape.empty() ? "" : ", ", size);
  }
  problem_ = str_cat(
      is_complex ? "a complex tensor of shape [" : "a tensor of shape [",
      shape,
      ']');
}

void TrackedValue::check(const char* where, const std::string& name) const {
  if (!problem_.empty()) {
    throw UsageError(str_cat(
        '[',
        where,
        "] '",
        printable(name),
        "' is ",
        problem_,
        ", expected one real number. Log its mean(), its norm() or one "
        "element"));
  }
}

std::optional<double> TrackedValue::number() const {
  return std::visit(
      [](const auto& held) -> std::optional<double> {
        if constexpr (std::is_convertible_v<decltype(held), double>) {
          return static_cast<double>(held);
        } else {
          return std::nullopt;
        }
      },
      value_);
}

std::string TrackedValue::text() const {
  if (const auto* text = std::get_if<std::string>(&value_)) {
    return *text;
  }
  if (const auto* is_on = std::get_if<bool>(&value_)) {
    return *is_on ? "true" : "false";
  }
  if (const auto* number = std::get_if<int64_t>(&value_)) {
    return std::to_string(*number);
  }
  std::array<char, 32> digits{};
  const auto end = std::to_chars(
      digits.data(), digits.data() + digits.size(), std::get<double>(value_));
  return {digits.data(), end.ptr};
}

Tracker::~Tracker() = default;
void Tracker::start(const TrackedRun&) {}
void Tracker::store_configuration(const TrackedValues&) {}
void Tracker::log_images(
    const std::string&,
    const std::vector<TrackedImage>&,
    int64_t) {}
void Tracker::log_histogram(
    const std::string&,
    std::span<const double>,
    int64_t) {}
void Tracker::mark(const std::string&, int64_t) {}
void Tracker::resume(int64_t) {}
std::string Tracker::state() const {
  return {};
}
void Tracker::load_state(const std::string&) {}
void Tracker::finish() {}

std::vector<std::string> tracker_names() {
  std::vector<std::string> names;
  for (const auto& row : kBuiltinTrackers) {
    names.emplace_back(row.name);
  }
  return names;
}

struct Trackers::Impl {
  struct Entry {
    std::shared_ptr<Tracker> tracker;
    bool has_failed = false;
  };
  std::vector<Entry> entries;
  std::vector<std::unique_ptr<FolderClaim>> claims;
  int64_t next_step = 0;
  bool is_finished = false;
  bool has_said_late = false;
  bool has_said_twice = false;

  /// Calls a tracker. The run continues whatever the tracker throws.
  template <class F>
  void with(Entry& entry, const char* what, F&& call) {
    std::string why;
    try {
      call(*entry.tracker);
      return;
    } catch (const std::exception& error) {
      why = error.what();
    } catch (...) {
      why = "it threw an exception that is not a std::exception";
    }
    if (!entry.has_failed) {
      entry.has_failed = true;
      print_line(
          std::cerr,
          str_cat(
              "[tracker ",
              printable(entry.tracker->name()),
              "] ",
              what,
              " failed: ",
              printable(why),
              ". The run continues without this tracker, and further failures "
              "are not shown"));
    }
  }
  template <class F>
  void each(const char* what, F&& call) {
    for (auto& entry : entries) {
      with(entry, what, call);
    }
  }
  /// Whether the trackers are already finished.
  bool is_late(const char* where, const std::string& name) {
    if (is_finished && !std::exchange(has_said_late, true)) {
      print_line(
          std::cerr,
          str_cat(
              '[',
              where,
              "] '",
              printable(name),
              "' and all later values are not logged, because the trackers are "
              "finished. Log before end_training()"));
    }
    return is_finished;
  }
  /// Keeps each name once, with its last value.
  TrackedValues without_repeats(const char* where, const TrackedValues& given) {
    TrackedValues kept;
    std::map<std::string_view, size_t> indices;
    for (const auto& [name, value] : given) {
      const auto [slot, is_new] = indices.try_emplace(name, kept.size());
      if (is_new) {
        kept.emplace_back(name, value);
        continue;
      }
      kept[slot->second].second = value;
      if (!std::exchange(has_said_twice, true)) {
        print_line(
            std::cerr,
            str_cat(
                '[',
                where,
                "] '",
                printable(name),
                "' was passed twice in one call, so only its last value is "
                "logged. Pass each name only once"));
      }
    }
    return kept;
  }
  int64_t latest_step() const { return std::max<int64_t>(next_step - 1, 0); }
  int64_t take(int64_t step) {
    next_step = std::max(next_step, step + 1);
    return step;
  }
};

Trackers::Trackers() : impl_(std::make_unique<Impl>()) {}

Trackers::Trackers(
    const std::string& project,
    TrackingOptions options,
    int num_processes,
    int attempt)
    : Trackers() {
  check_project(project);
  check_values("init_trackers", options.configuration);
  const auto folder = options.logging_dir / project;
  std::set<std::string> names;
  std::vector<Impl::Entry> entries;
  for (const auto& choice : options.log_with) {
    auto tracker = choice.tracker();
    const auto* builtin = tracker ? nullptr : &find_builtin(choice.name());
    if (builtin != nullptr) {
      tracker = builtin->make(options);
    }
    if (!names.insert(tracker->name()).second) {
      throw UsageError(str_cat(
          "[init_trackers] Two trackers are named '",
          printable(tracker->name()),
          "'. Pass each tracker only once"));
    }
    if (builtin != nullptr && builtin->fills_folder) {
      impl_->claims.push_back(
          std::make_unique<FolderClaim>(folder, builtin->name));
    }
    entries.push_back({std::move(tracker)});
  }
  impl_->entries = std::move(entries);
  const TrackedRun run = {
      .project = project,
      .folder = folder,
      .num_processes = num_processes,
      .attempt = attempt};
  std::error_code ignored; // a tracker that needs the folder reports the error
  std::filesystem::create_directories(run.folder, ignored);
  impl_->each("start", [&](Tracker& tracker) { tracker.start(run); });
  if (!options.configuration.empty()) {
    const auto values =
        impl_->without_repeats("init_trackers", options.configuration);
    impl_->each("store_configuration", [&](Tracker& tracker) {
      tracker.store_configuration(values);
    });
  }
}

Trackers::~Trackers() {
  finish();
}
Trackers::Trackers(Trackers&& other) noexcept : Trackers() {
  std::swap(impl_, other.impl_);
}
Trackers& Trackers::operator=(Trackers&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

void Trackers::log(const TrackedValues& values, std::optional<int64_t> step) {
  check_values("log", values);
  if (impl_->is_late("log", values.empty() ? "" : values[0].first)) {
    return;
  }
  const int64_t taken = impl_->take(step.value_or(impl_->next_step));
  if (!empty()) {
    TrackedValues once;
    if (has_repeats(values)) {
      once = impl_->without_repeats("log", values);
    }
    const auto& kept = once.empty() ? values : once;
    impl_->each("log", [&](Tracker& tracker) { tracker.log(kept, taken); });
  }
}

void Trackers::log_images(
    const std::string& name,
    const std::vector<TrackedImage>& images,
    std::optional<int64_t> step) {
  if (impl_->is_late("log_images", name)) {
    return;
  }
  const int64_t taken = impl_->take(step.value_or(impl_->latest_step()));
  impl_->each("log_images", [&](Tracker& tracker) {
    tracker.log_images(name, images, taken);
  });
}

void Trackers::log_histogram(
    const std::string& name,
    std::span<const double> values,
    std::optional<int64_t> step) {
  if (impl_->is_late("log_histogram", name)) {
    return;
  }
  const int64_t taken = impl_->take(step.value_or(impl_->latest_step()));
  impl_->each("log_histogram", [&](Tracker& tracker) {
    tracker.log_histogram(name, values, taken);
  });
}

void Trackers::mark(const std::string& event) {
  const int64_t step = impl_->latest_step();
  impl_->each("mark", [&](Tracker& tracker) { tracker.mark(event, step); });
}

Tracker& Trackers::get(const std::string& name) const {
  static NoTracker nobody;
  if (empty()) {
    return nobody;
  }
  std::vector<std::string> names;
  for (const auto& entry : impl_->entries) {
    names.push_back(entry.tracker->name());
    if (names.back() == name) {
      return *entry.tracker;
    }
  }
  throw UsageError(str_cat(
      "[get_tracker] This run has no tracker '",
      printable(name),
      "'. It has ",
      printable(joined(names))));
}

bool Trackers::empty() const {
  return impl_->entries.empty();
}

void Trackers::finish() {
  impl_->each("finish", [](Tracker& tracker) { tracker.finish(); });
  impl_->is_finished |= !empty();
  impl_->entries.clear();
  impl_->claims.clear();
}

Trackers::State Trackers::state() const {
  State state = {.next_step = impl_->next_step};
  impl_->each("state", [&](Tracker& tracker) {
    state.trackers[tracker.name()] = tracker.state();
  });
  return state;
}

void Trackers::load_state(const State& state) {
  impl_->next_step = state.next_step;
  for (auto& entry : impl_->entries) {
    const auto found = state.trackers.find(entry.tracker->name());
    if (found != state.trackers.end() && !found->second.empty()) {
      impl_->with(entry, "load_state", [&](Tracker& tracker) {
        tracker.load_state(found->second);
      });
    }
  }
  impl_->each(
      "resume", [&](Tracker& tracker) { tracker.resume(state.next_step); });
}

} // namespace accelerate
