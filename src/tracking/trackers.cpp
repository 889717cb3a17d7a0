// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <iostream>
#include <set>

#include "accelerate/error.h"
#include "accelerate/logger.h"
#include "base/str.h"
#include "tracking/builtin.h"
#include "tracking/run_folder.h"

namespace accelerate {
namespace {

struct BuiltinTracker {
  const char* name;
  std::shared_ptr<Tracker> (*make)(const TrackingOptions&);
};

constexpr BuiltinTracker kBuiltinTrackers[] = {
    {kJsonLinesTracker, make_json_lines_tracker},
    {"csv", make_csv_tracker},
    {"tensorboard", make_tensorboard_tracker},
    {"mlflow", make_mlflow_tracker},
};

/// On ranks that log nothing.
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

std::shared_ptr<Tracker> make_tracker(
    const TrackerChoice& choice,
    const TrackingOptions& options) {
  if (choice.tracker()) {
    return choice.tracker();
  }
  for (const auto& row : kBuiltinTrackers) {
    if (choice.name() == row.name) {
      return row.make(options);
    }
  }
  throw UsageError(str_cat(
      "[init_trackers] there is no tracker '",
      choice.name(),
      "'; there are ",
      joined(tracker_names()),
      " and objects of your own"));
}

} // namespace

void check_project(const std::string& project) {
  if (project.empty() || project == "." || project == ".." ||
      project.find('/') != std::string::npos ||
      project.find('\0') != std::string::npos) {
    throw UsageError(str_cat(
        "[init_trackers] got the project '",
        project,
        "', expected the plain name of a folder"));
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
  int64_t next_step = 0;

  /// Whatever a tracker throws, the run goes on.
  template <class F>
  void with(Entry& entry, const char* what, F&& call) {
    std::string why;
    try {
      call(*entry.tracker);
      return;
    } catch (const std::exception& error) {
      why = error.what();
    } catch (...) {
      why = "it threw what is no std::exception";
    }
    if (!entry.has_failed) {
      entry.has_failed = true;
      print_line(
          std::cerr,
          str_cat(
              "[tracker ",
              entry.tracker->name(),
              "] ",
              what,
              " failed: ",
              why,
              ". The run goes on without what it was to keep; further failures "
              "of this tracker are not shown"));
    }
  }
  template <class F>
  void each(const char* what, F&& call) {
    for (auto& entry : entries) {
      with(entry, what, call);
    }
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
  std::set<std::string> names;
  for (const auto& choice : options.log_with) {
    auto tracker = make_tracker(choice, options);
    if (!names.insert(tracker->name()).second) {
      throw UsageError(str_cat(
          "[init_trackers] got two trackers named '",
          tracker->name(),
          "', expected each once"));
    }
    impl_->entries.push_back({std::move(tracker)});
  }
  const TrackedRun run = {
      .project = project,
      .folder = options.logging_dir / project,
      .num_processes = num_processes,
      .attempt = attempt};
  std::error_code ignored; // Who needs the folder says what is wrong with it.
  std::filesystem::create_directories(run.folder, ignored);
  impl_->each("start", [&](Tracker& tracker) { tracker.start(run); });
  if (!options.configuration.empty()) {
    impl_->each("store_configuration", [&](Tracker& tracker) {
      tracker.store_configuration(options.configuration);
    });
  }
}

Trackers::~Trackers() {
  if (impl_) {
    finish();
  }
}
Trackers::Trackers(Trackers&&) noexcept = default;
Trackers& Trackers::operator=(Trackers&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

void Trackers::log(const TrackedValues& values, std::optional<int64_t> step) {
  const int64_t taken = impl_->take(step.value_or(impl_->next_step));
  impl_->each("log", [&](Tracker& tracker) { tracker.log(values, taken); });
}

void Trackers::log_images(
    const std::string& name,
    const std::vector<TrackedImage>& images,
    std::optional<int64_t> step) {
  const int64_t taken = impl_->take(step.value_or(impl_->latest_step()));
  impl_->each("log_images", [&](Tracker& tracker) {
    tracker.log_images(name, images, taken);
  });
}

void Trackers::log_histogram(
    const std::string& name,
    std::span<const double> values,
    std::optional<int64_t> step) {
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
      "[get_tracker] there is no tracker '",
      name,
      "' in this run; there are ",
      joined(names)));
}

bool Trackers::empty() const {
  return impl_->entries.empty();
}

void Trackers::finish() {
  impl_->each("finish", [](Tracker& tracker) { tracker.finish(); });
  impl_->entries.clear();
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
