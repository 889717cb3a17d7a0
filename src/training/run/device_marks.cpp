// SPDX-License-Identifier: Apache-2.0
#include "training/run/device_marks.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "training/device/device_graph.h"

namespace accelerate {
namespace {

class EventMarks final : public DeviceMarks {
 public:
  explicit EventMarks(c10::Device device)
      : device_(device), guard_(device.type()) {}

  bool leave() override {
    // Phases end in destructors, and errors of the device are reported
    // elsewhere.
    return attempt([&] {
      if (is_recording_graph(device_)) {
        return false;
      }
      auto event = take_spare();
      event.record(guard_.getStream(device_));
      under_way_.push_back(std::move(event));
      return true;
    });
  }

  std::optional<double> take() override {
    double seconds = 0;
    const bool has_passed = attempt([&] {
      // A query would invalidate a recording.
      if (under_way_.empty() || is_recording_graph(device_) ||
          !under_way_.front().query()) {
        return false;
      }
      if (!taken_.empty()) {
        seconds = taken_.back().elapsedTime(under_way_.front()) / 1e3;
      }
      return true;
    });
    if (!has_passed) {
      return std::nullopt;
    }
    if (!taken_.empty()) {
      spare_.push_back(std::move(taken_.back()));
      taken_.pop_back();
    }
    taken_.push_back(std::move(under_way_.front()));
    under_way_.pop_front();
    return seconds;
  }

 private:
  template <class Work>
  bool attempt(Work&& work) {
    try {
      return !is_broken_ && work();
    } catch (const std::exception&) {
      is_broken_ = true;
      return false;
    }
  }

  c10::Event take_spare() {
    if (spare_.empty()) {
      return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    }
    auto event = std::move(spare_.back());
    spare_.pop_back();
    return event;
  }

  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  std::deque<c10::Event> under_way_;
  /// The latest event that was taken; empty if there is none.
  std::vector<c10::Event> taken_;
  std::vector<c10::Event> spare_;
  bool is_broken_ = false;
};

} // namespace

std::unique_ptr<DeviceMarks> make_device_marks(c10::Device device) {
  try {
    c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    const c10::impl::VirtualGuardImpl guard(device.type());
    begin.record(guard.getStream(device));
    end.record(guard.getStream(device));
    end.synchronize();
    begin.elapsedTime(end);
  } catch (const std::exception&) {
    return nullptr;
  }
  return std::make_unique<EventMarks>(device);
}

} // namespace accelerate
