// SPDX-License-Identifier: Apache-2.0
#include "device/pretend_accelerator.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>

#include "accelerate/device/accelerator_kind.h"
#include "accelerate/distributed/c10d.h"

namespace accelerate::testing {
namespace {

constexpr auto kType = c10::kPrivateUse1;
constexpr c10::StreamId kSideStream = 1;

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kNumPretendDevices> current_streams{};

// --- memory

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    is_used_ = true;
    void* memory = c10::alloc_cpu(size);
    const std::lock_guard<std::mutex> lock(mutex());
    sizes()[memory] = static_cast<int64_t>(size);
    auto& counts = pretend_counts();
    counts.bytes += static_cast<int64_t>(size);
    counts.peak_bytes = std::max(counts.peak_bytes.load(), counts.bytes.load());
    return {memory, memory, &release, c10::Device(kType, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
  bool initialized() override { return is_used_; }
  void emptyCache(c10::MempoolId_t) override {
    ++pretend_counts().emptied_caches;
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex) override {
    return {};
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

 private:
  static void release(void* memory) {
    {
      const std::lock_guard<std::mutex> lock(mutex());
      pretend_counts().bytes -= sizes()[memory];
      sizes().erase(memory);
    }
    c10::free_cpu(memory);
  }
  // Tensors may outlive everything.
  static std::mutex& mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static std::map<void*, int64_t>& sizes() {
    static auto* const sizes = new std::map<void*, int64_t>;
    return *sizes;
  }

  std::atomic<bool> is_used_{false};
};

/// Host memory that the devices can "access directly".
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* memory = c10::alloc_cpu(size);
    const std::lock_guard<std::mutex> lock(mutex());
    blocks()[memory] = size;
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
  static bool holds(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex());
    auto after = blocks().upper_bound(data);
    if (after == blocks().begin()) {
      return false;
    }
    const auto& [begin, size] = *--after;
    return data < static_cast<const char*>(begin) + size;
  }

 private:
  static void release(void* memory) {
    {
      const std::lock_guard<std::mutex> lock(mutex());
      blocks().erase(memory);
    }
    c10::free_cpu(memory);
  }
  static std::mutex& mutex() {
    static auto* const only = new std::mutex;
    return *only;
  }
  static std::map<const void*, size_t>& blocks() {
    static auto* const all = new std::map<const void*, size_t>;
    return *all;
  }
};

DeviceMemory& device_memory() {
  static auto* const memory = new DeviceMemory;
  return *memory;
}

// --- devices, streams and events: everything is complete when a call returns

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Clock = std::chrono::steady_clock;

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      TORCH_CHECK(device.index() < kNumPretendDevices, "no such device");
      current_device = device.index();
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream(device, stream_of(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream(device, kSideStream);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto before = getStream(next.device());
    stream_of(next.device()) = next.id();
    return before;
  }
  void record(
      void** event,
      const c10::Stream&,
      c10::DeviceIndex,
      c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Clock::time_point;
    }
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    const std::chrono::duration<double, std::milli> elapsed =
        *static_cast<Clock::time_point*>(end) -
        *static_cast<Clock::time_point*>(begin);
    return elapsed.count();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return !pretend_is_behind(); }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kNumPretendDevices;
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

 private:
  static c10::Device indexed(c10::Device device) {
    return {kType, device.has_index() ? device.index() : current_device};
  }
  static c10::StreamId& stream_of(c10::Device device) {
    return current_streams.at(static_cast<size_t>(indexed(device).index()));
  }
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, indexed(device), id);
  }
};

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(c10::DeviceIndex index) {
    device_ = c10::Device(kType, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kNumPretendDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    Guard().setDevice({kType, index});
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return Guard().exchangeDevice({kType, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedMemory* const memory = new PinnedMemory;
    return memory;
  }
  bool isPinnedPtr(const void* data) const override {
    return PinnedMemory::holds(data);
  }
  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex index) const override {
    static const auto* const generators = new std::array<at::Generator, 2>{
        at::make_generator<Generator>(c10::DeviceIndex{0}),
        at::make_generator<Generator>(c10::DeviceIndex{1})};
    return generators->at(
        static_cast<size_t>(index < 0 ? current_device : index));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size)
      const override {
    auto memory = device_memory().allocate(size);
    std::memcpy(memory.get(), storage.data(), std::min(size, storage.nbytes()));
    const auto& own = storage;
    own.set_data_ptr_noswap(std::move(memory));
    own.set_nbytes(size);
  }
};

// --- operators

/// The same memory as a CPU tensor, for the CPU's kernels.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor
                         : at::from_blob(
                               tensor.data_ptr(),
                               tensor.sizes(),
                               tensor.strides(),
                               tensor.options().device(c10::kCPU));
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device> device,
    std::optional<bool>) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_strided_generic(
      size,
      stride,
      &device_memory(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device> device,
    std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_generic(
      size,
      &device_memory(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype),
      format);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const auto& device = to.is_cpu() ? from.device() : to.device();
  if (Guard().getStream(device).id() == kSideStream) {
    ++pretend_counts().copies_on_side_streams;
  }
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  return on_host(tensor).item();
}

void record_stream(at::Tensor&, c10::Stream) {}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++pretend_counts().kernels;
  at::native::cpu_fallback(op, stack);
}

} // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("record_stream", record_stream);
  // Views and sizes are the same on all devices.
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("resize_", at::native::resize_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl(
      "set_.source_Storage",
      static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  library.impl(
      "set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
}

// What the CPU's own lists have for the operators that the tests use.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

void register_pretend_accelerator() {
  static const bool is_done = [] {
    c10::register_privateuse1_backend(kPretendName);
    c10::SetAllocator(kType, &device_memory());
    c10::impl::registerDeviceGuard(kType, new Guard);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    register_accelerator(
        {.type = kType,
         .distributed_type = "MULTI_NPU",
         .collective_backend = kPretendBackend});
    register_backend(
        {.name = kPretendBackend,
         .devices = {kType},
         .available = [] { return true; },
         .make =
             [](const BackendArguments& arguments) {
               return make_pretend_backend(
                   arguments.store,
                   arguments.rank,
                   arguments.world_size,
                   arguments.timeout);
             }});
    return true;
  }();
  static_cast<void>(is_done);
}

PretendCounts& pretend_counts() {
  static PretendCounts counts;
  return counts;
}

std::atomic<bool>& pretend_is_behind() {
  static std::atomic<bool> is_behind{false};
  return is_behind;
}

} // namespace accelerate::testing
