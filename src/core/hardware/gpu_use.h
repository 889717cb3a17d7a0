// SPDX-License-Identifier: Apache-2.0
// The utilisation of a rank's GPU.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "accelerate/process.h"
#include "core/base/internal.h"
#include "core/hardware/gpu_kinds.h"

namespace accelerate {

/// Queries the driver once a second on its own thread, because drivers may take
/// milliseconds to answer.
class ACCELERATE_INTERNAL GpuUse {
 public:
  /// Measures the GPU with index `index` in this process, with the first of
  /// `kinds` whose driver answers.
  GpuUse(const std::vector<GpuKind>& kinds, EnvLookup env, int index);
  ~GpuUse();
  GpuUse(const GpuUse&) = delete;
  GpuUse& operator=(const GpuUse&) = delete;

  /// How many seconds the GPU has been busy. Empty if no driver reports it.
  std::optional<double> busy_seconds() const;

 private:
  void sample(const std::vector<GpuKind>& kinds, const EnvLookup& env);

  int index_;
  mutable std::mutex mutex_;
  std::condition_variable stop_;
  bool is_stopped_ = false;
  std::optional<double> busy_;
  std::thread thread_;
};

} // namespace accelerate
