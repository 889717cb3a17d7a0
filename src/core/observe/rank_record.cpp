// SPDX-License-Identifier: Apache-2.0
#include "core/observe/rank_record.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/str.h"

namespace accelerate {
namespace {

// Never destroyed, because threads may outlive static objects.
struct Records {
  static Records& instance() {
    static auto* records = new Records;
    return *records;
  }
  std::mutex mutex;
  std::vector<std::weak_ptr<RankRecord>> all;
};

std::shared_ptr<RankRecord> make_record() {
  auto record = std::make_shared<RankRecord>();
  auto& records = Records::instance();
  const std::lock_guard<std::mutex> lock(records.mutex);
  std::erase_if(records.all, [](const auto& old) { return old.expired(); });
  records.all.push_back(record);
  return record;
}

thread_local RankRecord* record_of_thread = nullptr;
thread_local bool has_thread_ended = false;

/// Keeps the record until the thread ends. Static objects that are destroyed
/// later get a record that is never freed.
RankRecord* keep_record(std::shared_ptr<RankRecord> record) {
  struct Keeper {
    ~Keeper() {
      record_of_thread = nullptr;
      has_thread_ended = true;
    }
    std::shared_ptr<RankRecord> kept;
  };
  if (has_thread_ended) {
    return (new std::shared_ptr<RankRecord>(std::move(record)))->get();
  }
  thread_local Keeper keeper;
  keeper.kept = std::move(record);
  return keeper.kept.get();
}

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kMostSteps = 1000;

template <class Times>
auto& time_of(Times& times, StepPhase phase) {
  return times[static_cast<size_t>(phase)];
}

template <class Times>
StepTimes::Phases phases_of(const Times& times) {
  return {
      time_of(times, StepPhase::kData),
      time_of(times, StepPhase::kForward),
      time_of(times, StepPhase::kBackward),
      time_of(times, StepPhase::kCommunication),
      time_of(times, StepPhase::kOptimizer),
      time_of(times, StepPhase::kCheckpoint),
      time_of(times, StepPhase::kCaptured),
      time_of(times, StepPhase::kUser)};
}

double seconds_between(
    RankRecord::Clock::time_point begin,
    RankRecord::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

} // namespace

const char* words_for(StepPhase phase) {
  switch (phase) {
    case StepPhase::kUser:
      return "in user code";
    case StepPhase::kData:
      return "waiting for data";
    case StepPhase::kForward:
      return "in a forward pass";
    case StepPhase::kBackward:
      return "in a backward pass";
    case StepPhase::kCommunication:
      return "waiting in a collective";
    case StepPhase::kOptimizer:
      return "in an optimizer's step";
    case StepPhase::kCheckpoint:
      return "saving or loading a checkpoint";
    case StepPhase::kCaptured:
      return "in a captured step";
  }
  return "";
}

RankRecord& RankRecord::of_this_thread() {
  if (record_of_thread == nullptr) {
    record_of_thread = keep_record(make_record());
  }
  return *record_of_thread;
}

std::vector<std::shared_ptr<RankRecord>> RankRecord::all() {
  auto& records = Records::instance();
  const std::lock_guard<std::mutex> lock(records.mutex);
  std::vector<std::shared_ptr<RankRecord>> living;
  for (const auto& entry : records.all) {
    if (auto record = entry.lock()) {
      living.push_back(std::move(record));
    }
  }
  return living;
}

RankRecord::RankRecord()
    : since_(Clock::now().time_since_epoch().count()),
      thread_(static_cast<pid_t>(syscall(SYS_gettid))) {}

StepPhase RankRecord::enter(StepPhase phase) {
  const StepPhase before = phase_.load(kRelaxed);
  change(phase);
  if (is_captured_) {
    return before;
  }
  // A backward can also begin a step, because loaders and forwards of a single
  // process may be torch's own.
  if (phase == StepPhase::kData || phase == StepPhase::kForward ||
      phase == StepPhase::kBackward || phase == StepPhase::kCaptured) {
    if (has_updated_) {
      end_step();
    }
    begin_step();
  }
  is_captured_ = phase == StepPhase::kCaptured;
  return before;
}

void RankRecord::leave(StepPhase before) {
  const bool ends_capture = phase_.load(kRelaxed) == StepPhase::kCaptured;
  change(before);
  if (is_captured_ && ends_capture && before != StepPhase::kCaptured) {
    mark(StepPhase::kCaptured);
    is_captured_ = false;
  }
}

void RankRecord::change(StepPhase next) {
  const auto now = Clock::now();
  const auto begin = since();
  if (is_in_step_) {
    const StepPhase phase =
        is_captured_ ? StepPhase::kCaptured : phase_.load(kRelaxed);
    if (!is_captured_) {
      mark(
          phase == StepPhase::kBackward && has_last_gradient_
              ? StepPhase::kCommunication
              : phase);
    }
    auto elapsed = seconds_between(begin, now);
    if (phase == StepPhase::kBackward && last_gradient_ > begin) {
      time_of(step_, StepPhase::kCommunication) +=
          seconds_between(last_gradient_, now);
      elapsed = seconds_between(begin, last_gradient_);
    }
    time_of(step_, phase) += elapsed;
  }
  has_last_gradient_ = false;
  since_.store(now.time_since_epoch().count(), kRelaxed);
  phase_.store(next, kRelaxed);
}

void RankRecord::note_last_gradient() {
  if (marks_ && !is_captured_ && phase() == StepPhase::kBackward) {
    mark(StepPhase::kBackward);
    has_last_gradient_ = true;
  }
}

void RankRecord::follow(std::function<std::unique_ptr<DeviceMarks>()> make) {
  make_marks_ = std::move(make);
  marks_.reset();
  marked_.clear();
  device_step_ = {};
  step_ = {};
  is_in_step_ = false;
  has_updated_ = false;
}

void RankRecord::begin_step() {
  if (std::exchange(is_in_step_, true)) {
    return;
  }
  if (make_marks_) {
    marks_ = std::exchange(make_marks_, nullptr)();
  }
  if (marks_ && marks_->leave()) {
    marked_.push_back({.begins_step = true});
  }
}

void RankRecord::mark(StepPhase phase) {
  if (marks_ && is_in_step_ && marks_->leave()) {
    marked_.push_back({.phase = phase});
  }
}

void RankRecord::take_marks() {
  while (!marked_.empty()) {
    const auto seconds = marks_->take();
    if (!seconds) {
      return;
    }
    const auto marked = marked_.front();
    marked_.pop_front();
    if (marked.begins_step) {
      continue;
    }
    time_of(device_step_, marked.phase) += *seconds;
    if (marked.ends_step) {
      add_step(std::exchange(device_step_, {}));
    }
  }
}

void RankRecord::end_step() {
  const auto step = std::exchange(step_, {});
  has_updated_ = false;
  if (!marks_) {
    add_step(step);
    return;
  }
  if (!marked_.empty()) {
    marked_.back().ends_step = true;
  }
  take_marks();
}

void RankRecord::add_step(const Times& step) {
  for (size_t i = 0; i < kNumPhases; ++i) {
    all_steps_[i] += step[i];
  }
  if (last_steps_.size() < kMostSteps) {
    last_steps_.push_back(step);
  } else {
    last_steps_[static_cast<size_t>(num_steps_) % kMostSteps] = step;
  }
  ++num_steps_;
}

StepTimes RankRecord::step_times() {
  // The time since the last change belongs to the current step.
  change(phase_.load(kRelaxed));
  if (is_in_step_ && has_updated_) {
    end_step();
    is_in_step_ = false;
  } else if (!is_captured_) {
    take_marks();
  }
  StepTimes times;
  times.num_steps = num_steps_;
  times.sum = phases_of(all_steps_);
  const size_t oldest = last_steps_.size() < kMostSteps
                            ? 0
                            : static_cast<size_t>(num_steps_) % kMostSteps;
  for (size_t i = 0; i < last_steps_.size(); ++i) {
    times.last.push_back(
        phases_of(last_steps_[(oldest + i) % last_steps_.size()]));
  }
  return times;
}

void RankRecord::set_operation(const ObservedOperation& operation) {
  const size_t num_dims = std::min(operation.num_dims, sizes_.size());
  for (size_t i = 0; i < num_dims; ++i) {
    sizes_[i].store(operation.sizes[i], kRelaxed);
  }
  num_dims_.store(num_dims, kRelaxed);
  dtype_.store(operation.dtype, kRelaxed);
  group_size_.store(operation.group_size, kRelaxed);
  own_number_.store(operation.number, kRelaxed);
  if (operation.number > 0) {
    number_.store(operation.number, kRelaxed);
  }
  name_.store(operation.name, kRelaxed);
}

void RankRecord::clear_operation() {
  name_.store(nullptr, kRelaxed);
  own_number_.store(0, kRelaxed);
}

void RankRecord::set_topic(std::string topic) {
  const std::lock_guard<std::mutex> lock(mutex_);
  topic_ = std::move(topic);
}

std::string RankRecord::operation() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!topic_.empty()) {
      return topic_;
    }
  }
  const char* name = name_.load(kRelaxed);
  if (name == nullptr) {
    return {};
  }
  std::string text = name;
  if (const char* dtype = dtype_.load(kRelaxed)) {
    text += str_cat(' ', dtype, '[');
    const size_t num_dims = num_dims_.load(kRelaxed);
    for (size_t i = 0; i < num_dims; ++i) {
      text += str_cat(i > 0 ? "," : "", sizes_[i].load(kRelaxed));
    }
    text += ']';
  }
  if (const int size = group_size_.load(kRelaxed); size > 0) {
    text += str_cat(" in a group of ", size);
  }
  return text;
}

} // namespace accelerate
