// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <mutex>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/device/device_graph.h"
#include "training/device/streams.h"

namespace accelerate {
namespace {

/// An allocator pool, freed together with its last graph.
struct Pool {
  const at::cuda::MempoolId_t id = at::cuda::graph_pool_handle();
};

class CudaMemory final : public GraphMemory {
 public:
  std::shared_ptr<const Pool> pool() {
    auto pool = pool_.lock();
    if (!pool) {
      pool = std::make_shared<const Pool>();
      pool_ = pool;
    }
    return pool;
  }

 private:
  std::weak_ptr<const Pool> pool_;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(std::shared_ptr<const Pool> pool, c10::Device device)
      : pool_(std::move(pool)),
        // Recording needs a stream other than the default one. Use the one on
        // which engines expect gradients.
        stream_(stream_for(StreamRole::kRecording, device)) {}

  void record(const std::function<void()>& work) {
    const c10::cuda::CUDAGuard device(stream_.device());
    // Earlier work must be complete before the recording allocates.
    c10::cuda::device_synchronize();
    // The recording has its own memory. First release the cached memory of
    // earlier steps, otherwise a step that needs half of the device could not
    // be recorded.
    c10::cuda::CUDACachingAllocator::emptyCache();
    const c10::cuda::CUDAStreamGuard stream(stream_);
    try {
      // Other threads, e.g. of loaders, may continue to call CUDA.
      graph_.capture_begin(pool_->id, cudaStreamCaptureModeThreadLocal);
      work();
    } catch (...) {
      give_up();
      throw;
    }
    try {
      graph_.capture_end();
    } catch (const std::exception& error) {
      recover();
      throw SystemError(
          str_cat("CUDA could not record the step: ", error.what()));
    }
  }

  void replay() override { graph_.replay(); }

 private:
  void give_up() {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
      // Ignore this error, because the current exception is more informative.
      recover();
    }
  }

  // A failed recording leaves the generator and the allocator in recording
  // mode.
  void recover() {
    auto& generator = const_cast<at::Generator&>(
        at::cuda::detail::getDefaultCUDAGenerator(stream_.device_index()));
    const std::lock_guard<std::mutex> lock(generator.mutex());
    const auto seed = generator.current_seed();
    const auto offset = generator.get_offset();
    generator.unsafeGetGeneratorImpl()->graphsafe_set_state(
        at::cuda::detail::createCUDAGenerator(stream_.device_index())
            .getIntrusivePtr());
    generator.set_current_seed(seed);
    generator.set_offset(offset);
    for (const auto give_back :
         {c10::cuda::CUDACachingAllocator::endAllocateToPool,
          c10::cuda::CUDACachingAllocator::releasePool}) {
      try {
        give_back(stream_.device_index(), pool_->id);
      } catch (const c10::Error&) {
        // The recording has already released the pool, or has not begun to use
        // it.
      }
    }
  }

  std::shared_ptr<const Pool> pool_;
  c10::cuda::CUDAStream stream_;
  at::cuda::CUDAGraph graph_;
};

// Detects waits. Torch warns about every wait in this mode.
class CudaWaits final : public WaitObserver, c10::WarningHandler {
 public:
  CudaWaits()
      : mode_(c10::cuda::warning_state().get_sync_debug_mode()), guard_(this) {
    if (mode_ == c10::cuda::SyncDebugMode::L_DISABLED) {
      c10::cuda::warning_state().set_sync_debug_mode(
          c10::cuda::SyncDebugMode::L_WARN);
    }
  }
  ~CudaWaits() override {
    c10::cuda::warning_state().set_sync_debug_mode(mode_);
  }
  bool has_waited() const override { return has_waited_; }

 private:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronizing CUDA operation") !=
        std::string::npos) {
      has_waited_ = true;
    } else {
      c10::WarningHandler::process(warning);
    }
  }
  bool has_waited_ = false;
  c10::cuda::SyncDebugMode mode_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

class CudaRecorder final : public GraphRecorder {
 public:
  std::shared_ptr<GraphMemory> make_memory() const override {
    return std::make_shared<CudaMemory>();
  }
  std::unique_ptr<DeviceGraph> record(
      c10::Device device,
      const std::shared_ptr<GraphMemory>& memory,
      const std::function<void()>& work) const override {
    auto graph = std::make_unique<CudaGraph>(
        static_cast<CudaMemory&>(*memory).pool(), device);
    graph->record(work);
    return graph;
  }
  bool is_recording() const override {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
           c10::cuda::CaptureStatus::None;
  }
  std::unique_ptr<WaitObserver> observe_waits() const override {
    return std::make_unique<CudaWaits>();
  }
};

[[maybe_unused]] const bool has_recorder = [] {
  register_graph_recorder(c10::kCUDA, std::make_unique<CudaRecorder>());
  return true;
}();

} // namespace
} // namespace accelerate
