// SPDX-License-Identifier: Apache-2.0
#include "training/device/device_graph.h"

#include <c10/core/DeviceType.h>

#include <array>
#include <utility>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using Recorders = std::array<
    std::unique_ptr<const GraphRecorder>,
    c10::COMPILE_TIME_MAX_DEVICE_TYPES>;

Recorders& recorders() {
  static Recorders recorders;
  return recorders;
}

const GraphRecorder* recorder_of(c10::Device device) {
  return recorders()[static_cast<size_t>(device.type())].get();
}

} // namespace

void register_graph_recorder(
    c10::DeviceType type,
    std::unique_ptr<const GraphRecorder> recorder) {
  recorders()[static_cast<size_t>(type)] = std::move(recorder);
}

bool has_device_graphs(c10::Device device) {
  return recorder_of(device) != nullptr;
}

std::shared_ptr<GraphMemory> make_graph_memory(c10::Device device) {
  const auto* recorder = recorder_of(device);
  return recorder == nullptr ? nullptr : recorder->make_memory();
}

std::unique_ptr<DeviceGraph> record_graph(
    c10::Device device,
    const std::shared_ptr<GraphMemory>& memory,
    const std::function<void()>& work) {
  const auto* recorder = recorder_of(device);
  if (recorder == nullptr) {
    throw SystemError(
        "[capture] This build does not support device graphs. Check "
        "has_device_graphs first");
  }
  return recorder->record(device, memory, work);
}

bool is_recording_graph(c10::Device device) {
  const auto* recorder = recorder_of(device);
  return recorder != nullptr && recorder->is_recording();
}

WaitDetector::WaitDetector(c10::Device device) {
  if (const auto* recorder = recorder_of(device)) {
    observer_ = recorder->observe_waits();
  }
}

bool WaitDetector::has_waited() const {
  return observer_ && observer_->has_waited();
}

} // namespace accelerate
