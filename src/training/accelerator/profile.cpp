// SPDX-License-Identifier: Apache-2.0
#include "accelerate/observe/profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iostream>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/accelerator/memory_lines.h"
#include "training/parallel/recorded_range.h"

namespace accelerate {
namespace {

namespace kineto_api = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

/// torch has one profiler per process.
std::atomic<bool> is_profiling{false};

double milliseconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e6;
}

bool is_no_operator(const std::string& name) {
  return name == "[memory]" ||
         std::find(kRecordedRanges.begin(), kRecordedRanges.end(), name) !=
             kRecordedRanges.end();
}

/// The time of each event without the events that it contains. On one thread,
/// events nest.
std::vector<uint64_t> self_times(
    const std::vector<const kineto_api::KinetoEvent*>& events) {
  std::vector<uint64_t> self(events.size());
  std::vector<size_t> open;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& event = *events[i];
    while (!open.empty() &&
           (events[open.back()]->startThreadId() != event.startThreadId() ||
            events[open.back()]->endNs() <= event.startNs())) {
      open.pop_back();
    }
    self[i] = event.durationNs();
    if (!open.empty()) {
      auto& parent = self[open.back()];
      parent -= std::min(parent, event.durationNs());
    }
    open.push_back(i);
  }
  return self;
}

std::vector<ProfiledOperator> summed_up(
    const std::vector<kineto_api::KinetoEvent>& events) {
  std::map<std::string, ProfiledOperator> by_name;
  std::vector<const kineto_api::KinetoEvent*> on_host;
  for (const auto& event : events) {
    if (is_no_operator(event.name())) {
      continue;
    }
    if (event.deviceType() == c10::DeviceType::CPU) {
      if (!event.isAsync() && event.durationNs() > 0) {
        on_host.push_back(&event);
      }
    } else {
      auto& row = by_name[event.name()];
      ++row.calls;
      row.device_ms += milliseconds(event.durationNs());
    }
  }
  std::sort(on_host.begin(), on_host.end(), [](const auto* a, const auto* b) {
    return std::make_tuple(a->startThreadId(), a->startNs(), b->endNs()) <
           std::make_tuple(b->startThreadId(), b->startNs(), a->endNs());
  });
  const auto self = self_times(on_host);
  for (size_t i = 0; i < on_host.size(); ++i) {
    auto& row = by_name[on_host[i]->name()];
    ++row.calls;
    row.self_ms += milliseconds(self[i]);
    row.total_ms += milliseconds(on_host[i]->durationNs());
  }
  std::vector<ProfiledOperator> rows;
  for (auto& [name, row] : by_name) {
    row.name = name;
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.device_ms, a.self_ms) >
           std::make_pair(b.device_ms, b.self_ms);
  });
  return rows;
}

} // namespace

struct Profile::State {
  enum class Phase { kIdle, kWarmup, kActive };

  ProfileOptions options;
  int rank = 0;
  ProfilerConfig config{ProfilerState::KINETO};
  std::set<ActivityType> activities;
  int64_t num_steps = 0;
  int64_t num_cycles = 0;
  Phase phase = Phase::kIdle;
  bool is_stopped = false;
  std::vector<ProfiledOperator> operators;
  std::vector<std::filesystem::path> traces;

  /// The phase of the profile for the step that starts now.
  Phase planned() const;
  bool ends_cycle() const;
  void enter(Phase next);
  void finish_cycle();
};

Profile::State::Phase Profile::State::planned() const {
  if (!options.schedule) {
    return Phase::kActive;
  }
  const auto& plan = *options.schedule;
  const int64_t since = num_steps - plan.skip_first;
  const int64_t cycle = plan.wait + plan.warmup + plan.active;
  if (since < 0 || (plan.repeat > 0 && since / cycle >= plan.repeat)) {
    return Phase::kIdle;
  }
  const int64_t position = since % cycle;
  return position < plan.wait                 ? Phase::kIdle
         : position < plan.wait + plan.warmup ? Phase::kWarmup
                                              : Phase::kActive;
}

/// Whether the step that starts now is the first after a cycle.
bool Profile::State::ends_cycle() const {
  if (!options.schedule || phase != Phase::kActive) {
    return false;
  }
  const auto& plan = *options.schedule;
  const int64_t cycle = plan.wait + plan.warmup + plan.active;
  return (num_steps - plan.skip_first) % cycle == 0;
}

void Profile::State::enter(Phase next) {
  if (phase == Phase::kIdle && next != Phase::kIdle) {
    kineto_api::prepareProfiler(config, activities);
  }
  if (phase != Phase::kActive && next == Phase::kActive) {
    kineto_api::enableProfiler(config, activities);
  }
  phase = next;
}

void Profile::State::finish_cycle() {
  const auto result = kineto_api::disableProfiler();
  phase = Phase::kIdle;
  operators = summed_up(result->events());
  const int64_t cycle = num_cycles++;
  if (options.output_trace_dir.empty()) {
    return;
  }
  const auto path =
      options.output_trace_dir /
      (cycle == 0 ? str_cat("profile_", rank, ".json")
                  : str_cat("profile_", rank, "_", cycle, ".json"));
  std::error_code error;
  std::filesystem::create_directories(options.output_trace_dir, error);
  // Write under a temporary name first, so that a trace is complete or absent.
  // Kineto does not report a file that it cannot write.
  auto partial = path;
  partial += ".part";
  std::filesystem::remove(partial, error);
  result->save(partial.string());
  if (options.profile_memory && std::filesystem::exists(partial, error)) {
    add_memory_lines(partial);
  }
  std::filesystem::rename(partial, path, error);
  if (error) {
    std::error_code ignored;
    const auto space =
        std::filesystem::space(options.output_trace_dir, ignored);
    const bool is_full = !ignored && space.available == 0;
    // Kineto also writes to a temporary name of its own.
    for (const char* ending : {"", ".tmp"}) {
      std::filesystem::remove(partial.string() + ending, ignored);
    }
    throw SystemError(str_cat(
        "[profile] Cannot write the trace '",
        path.string(),
        "': ",
        is_full ? "no space left on the device" : error.message(),
        ". Choose another output_trace_dir"));
  }
  traces.push_back(path);
}

Profile::Profile(ProfileOptions options, c10::Device device, int rank)
    : state_(std::make_unique<State>()) {
  auto& state = *state_;
  state.options = std::move(options);
  state.rank = rank;
  if (const auto& plan = state.options.schedule) {
    if (plan->active < 1 || plan->skip_first < 0 || plan->wait < 0 ||
        plan->warmup < 0 || plan->repeat < 0) {
      throw UsageError(
          "[profile] The schedule is invalid. Set active to at least 1, and "
          "skip_first, wait, warmup and repeat to at least 0");
    }
  }
  if (is_profiling.exchange(true)) {
    throw UsageError(
        "[profile] Another profile is running in this process. Stop it "
        "first");
  }
  state.config = ProfilerConfig(
      ProfilerState::KINETO,
      state.options.record_shapes,
      state.options.profile_memory,
      /*with_stack=*/false,
      state.options.with_flops);
  state.activities = {ActivityType::CPU};
  if (state.options.devices.value_or(!device.is_cpu())) {
    // Kineto records the activities that this version of torch supports.
    state.activities.insert(
        {ActivityType::CUDA, ActivityType::XPU, ActivityType::PrivateUse1});
  }
  state.enter(state.planned());
}

Profile::~Profile() {
  if (!state_) {
    return;
  }
  try {
    stop();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
}

Profile::Profile(Profile&&) noexcept = default;

void Profile::step() {
  if (state_->is_stopped) {
    return;
  }
  ++state_->num_steps;
  if (state_->ends_cycle()) {
    state_->finish_cycle();
  }
  state_->enter(state_->planned());
}

void Profile::stop() {
  if (std::exchange(state_->is_stopped, true)) {
    return;
  }
  is_profiling = false;
  if (state_->phase == State::Phase::kWarmup) {
    kineto_api::enableProfiler(state_->config, state_->activities);
    kineto_api::disableProfiler();
  } else if (state_->phase == State::Phase::kActive) {
    state_->finish_cycle();
  }
  state_->phase = State::Phase::kIdle;
}

std::vector<ProfiledOperator> Profile::operators() const {
  return state_->operators;
}

const std::vector<std::filesystem::path>& Profile::traces() const {
  return state_->traces;
}

std::string Profile::table(size_t num_rows) const {
  constexpr size_t kNameColumns = 44;
  double own = 0;
  for (const auto& row : state_->operators) {
    own += row.self_ms;
  }
  char line[160];
  std::snprintf(
      line,
      sizeof(line),
      "%-44s %8s %10s %7s %10s %10s\n",
      "operator",
      "calls",
      "self ms",
      "self %",
      "total ms",
      "device ms");
  std::string text = line;
  for (size_t i = 0; i < std::min(num_rows, state_->operators.size()); ++i) {
    const auto& row = state_->operators[i];
    std::snprintf(
        line,
        sizeof(line),
        "%-44s %8lld %10.3f %6.1f%% %10.3f %10.3f\n",
        row.name.substr(0, kNameColumns).c_str(),
        static_cast<long long>(row.calls),
        row.self_ms,
        own > 0 ? row.self_ms / own * 100 : 0.0,
        row.total_ms,
        row.device_ms);
    text += line;
  }
  return text;
}

} // namespace accelerate
