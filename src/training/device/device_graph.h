// SPDX-License-Identifier: Apache-2.0
// Device work that is recorded once and replayed without the host.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "core/base/internal.h"

namespace accelerate {

/// Memory shared by the graphs of one owner. These graphs never run
/// concurrently, and the results of one are not read after another has run.
class ACCELERATE_INTERNAL GraphMemory {
 public:
  virtual ~GraphMemory() = default;
};

class ACCELERATE_INTERNAL DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Replays the graph on the current stream. Random numbers continue from one
  /// replay to the next.
  virtual void replay() = 0;
};

/// During its lifetime, detects whether this thread waits for the device.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  virtual bool has_waited() const = 0;
};

/// Records on one type of device. The functions below use it.
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

/// Called by a device's library when it is loaded, before any graph is created.
ACCELERATE_INTERNAL void register_graph_recorder(
    c10::DeviceType type,
    std::unique_ptr<const GraphRecorder> recorder);

/// Whether graphs of such a device are supported.
ACCELERATE_INTERNAL bool has_device_graphs(c10::Device device);

ACCELERATE_INTERNAL std::shared_ptr<GraphMemory> make_graph_memory(
    c10::Device device);

/// Runs `work` and records its device operations without executing them. Throws
/// the exceptions of `work`, and `SystemError` if the device cannot record it.
/// Generators and the allocator are then restored.
ACCELERATE_INTERNAL std::unique_ptr<DeviceGraph> record_graph(
    c10::Device device,
    const std::shared_ptr<GraphMemory>& memory,
    const std::function<void()>& work);

/// Whether any code is recording the calling thread's current stream.
ACCELERATE_INTERNAL bool is_recording_graph(c10::Device device);

/// The `WaitObserver` of a device. Detects nothing if the device has none.
class WaitDetector {
 public:
  explicit WaitDetector(c10::Device device);
  bool has_waited() const;

 private:
  std::unique_ptr<WaitObserver> observer_;
};

} // namespace accelerate
