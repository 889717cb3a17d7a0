// SPDX-License-Identifier: Apache-2.0
// Work on a device that is recorded once and repeated without the host.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "accelerate/export.h"

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

/// While it lives, looks whether this thread waits for the device.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  virtual bool has_waited() const = 0;
};

/// How one type of device records; see the functions below, which ask it.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  virtual std::shared_ptr<GraphMemory> make_memory() const = 0;
  virtual std::unique_ptr<DeviceGraph> record(
      c10::Device device,
      const std::shared_ptr<GraphMemory>& memory,
      const std::function<void()>& work) const = 0;
  virtual bool is_recording() const = 0;
  virtual std::unique_ptr<WaitObserver> observe_waits() const = 0;
};

/// Before any graph is made: the library of a device calls it as it is loaded.
ACCELERATE_API void register_graph_recorder(
    c10::DeviceType type,
    std::unique_ptr<const GraphRecorder> recorder);

/// Whether graphs of such a device can be made here.
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

/// The `WaitObserver` of a device; sees nothing if it has none.
class WaitWatch {
 public:
  explicit WaitWatch(c10::Device device);
  bool has_waited() const;

 private:
  std::unique_ptr<WaitObserver> observer_;
};

} // namespace accelerate
