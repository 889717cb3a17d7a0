// SPDX-License-Identifier: Apache-2.0
// In the place of cuda_graph.cpp where there is no CUDA to build with.
#include "accelerate/error.h"
#include "device/device_graph.h"

namespace accelerate {

bool has_device_graphs(c10::Device /*device*/) {
  return false;
}

std::shared_ptr<GraphMemory> make_graph_memory(c10::Device /*device*/) {
  return nullptr;
}

std::unique_ptr<DeviceGraph> record_graph(
    c10::Device /*device*/,
    const std::shared_ptr<GraphMemory>& /*memory*/,
    const std::function<void()>& /*work*/) {
  throw SystemError(
      "[capture] This build does not support device graphs. Check "
      "has_device_graphs first");
}

bool is_recording_graph(c10::Device /*device*/) {
  return false;
}

struct WaitWatch::State {};
WaitWatch::WaitWatch(c10::Device /*device*/) {}
WaitWatch::~WaitWatch() = default;
bool WaitWatch::has_waited() const {
  return false;
}

} // namespace accelerate
