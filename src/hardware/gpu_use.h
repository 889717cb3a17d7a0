// SPDX-License-Identifier: Apache-2.0
// How busy the GPU of a rank is.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/process.h"
#include "hardware/gpu_kinds.h"

namespace accelerate {

/// Asks the driver once a second, by a thread of its own: drivers may take
/// milliseconds to answer.
class ACCELERATE_API GpuUse {
 public:
  /// Of the GPU that is number `place` to this process, of the first of `kinds`
  /// whose driver answers.
  GpuUse(const std::vector<GpuKind>& kinds, EnvLookup env, int place);
  ~GpuUse();
  GpuUse(const GpuUse&) = delete;
  GpuUse& operator=(const GpuUse&) = delete;

  /// For how many seconds it has been busy; nothing where no driver says.
  std::optional<double> busy_seconds() const;

 private:
  void sample(const std::vector<GpuKind>& kinds, const EnvLookup& env);

  int place_;
  mutable std::mutex mutex_;
  std::condition_variable stop_;
  bool is_stopped_ = false;
  std::optional<double> busy_;
  std::thread thread_;
};

} // namespace accelerate
