// SPDX-License-Identifier: Apache-2.0
// Work on a device that is recorded once and repeated without the host.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

namespace accelerate {

/// Memory that graphs of one owner share: they never run at the same time, and
/// what one leaves there nobody reads after another has run.
class GraphMemory {
 public:
  virtual ~GraphMemory() = default;
};

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// On the current stream. Random numbers go on from one replay to the next.
  virtual void replay() = 0;
};

/// Whether graphs of such a device can be made in this build.
bool has_device_graphs(c10::Device device);

std::shared_ptr<GraphMemory> make_graph_memory(c10::Device device);

/// Runs `work`, whose operations on the device are recorded and not executed.
/// Throws what `work` throws, and `SystemError` where the device refuses to
/// record it; generators and the allocator are then as before.
std::unique_ptr<DeviceGraph> record_graph(
    c10::Device device,
    const std::shared_ptr<GraphMemory>& memory,
    const std::function<void()>& work);

/// Whether the calling thread's current stream records, whoever began it.
bool is_recording_graph(c10::Device device);

/// While it lives, looks whether this thread waits for the device.
class WaitWatch {
 public:
  explicit WaitWatch(c10::Device device);
  ~WaitWatch();
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  bool has_waited() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace accelerate
