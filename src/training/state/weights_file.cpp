// SPDX-License-Identifier: Apache-2.0
#include "training/state/weights_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/state/file_tensors.h"

namespace accelerate {
namespace {

constexpr std::size_t kAlignment = 64;
// torch's allocator already reuses the memory of small tensors.
constexpr std::size_t kMinReusedBytes = std::size_t{1} << 20;

struct Block {
  void* data = nullptr;
  std::size_t size = 0;
};

/// Released memory for the next tensors.
class KeptBlocks {
 public:
  Block take(std::size_t size) {
    {
      const std::lock_guard lock(mutex_);
      largest_ = std::max(largest_, size);
      // The best one that wastes at most a quarter.
      auto best = blocks_.end();
      for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
        if (block->size >= size && block->size <= size + size / 4 &&
            (best == blocks_.end() || block->size < best->size)) {
          best = block;
        }
      }
      if (best != blocks_.end()) {
        const Block block = *best;
        blocks_.erase(best);
        kept_ -= block.size;
        return block;
      }
    }
    if (void* data = allocate(size)) {
      return {data, size};
    }
    drop_all();
    if (void* data = allocate(size)) {
      return {data, size};
    }
    throw SystemError(str_cat(
        "[offload] Not enough memory for a tensor of ",
        size,
        " bytes. Use a smaller model or free memory"));
  }

  void give_back(Block block) {
    {
      const std::lock_guard lock(mutex_);
      blocks_.push_back(block);
      kept_ += block.size;
    }
    drop_surplus();
  }

 private:
  static void* allocate(std::size_t size) {
    return std::aligned_alloc(
        kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  }

  // The oldest go first.
  void drop_surplus() {
    const std::lock_guard lock(mutex_);
    while (kept_ > largest_ && !blocks_.empty()) {
      std::free(blocks_.front().data);
      kept_ -= blocks_.front().size;
      blocks_.erase(blocks_.begin());
    }
  }

  void drop_all() {
    const std::lock_guard lock(mutex_);
    for (const auto& block : blocks_) {
      std::free(block.data);
    }
    blocks_.clear();
    kept_ = 0;
  }

  std::mutex mutex_;
  std::vector<Block> blocks_;
  std::size_t kept_ = 0;
  std::size_t largest_ = 0;
};

KeptBlocks& kept_blocks() {
  // Never destroyed, because tensors may be released later than any static.
  static auto* blocks = new KeptBlocks;
  return *blocks;
}

std::size_t num_bytes(
    const std::vector<std::int64_t>& shape,
    c10::ScalarType dtype) {
  std::size_t size = c10::elementSize(dtype);
  for (const auto dimension : shape) {
    if (dimension < 0 ||
        __builtin_mul_overflow(
            size, static_cast<std::size_t>(dimension), &size)) {
      throw DataError(str_cat(
          "[offload] ",
          at::IntArrayRef(shape),
          " is not the shape of a tensor. Offload the model again"));
    }
  }
  return size;
}

at::Tensor new_tensor(
    const std::vector<std::int64_t>& shape,
    c10::ScalarType dtype,
    ReadMemory memory) {
  const auto options = at::TensorOptions(at::kCPU).dtype(dtype);
  const std::size_t size = num_bytes(shape, dtype);
  if (memory == ReadMemory::kOwn || size < kMinReusedBytes) {
    return at::empty(shape, options);
  }
  const Block block = kept_blocks().take(size);
  return at::from_blob(
      block.data,
      shape,
      [block](void*) { kept_blocks().give_back(block); },
      options);
}

void fill(
    const FileReader& reader,
    std::uint64_t position,
    const at::Tensor& tensor) {
  reader.read(
      position,
      {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
}

} // namespace

WeightsFile::WeightsFile(const std::filesystem::path& path)
    : reader_(path, "[safetensors]") {
  // The mapping is only used to read the header.
  const safetensors::File file(path);
  metadata_ = file.metadata();
  for (const auto& view : file.tensors()) {
    names_.push_back(view.name);
    entries_.emplace(
        view.name,
        Entry{
            .dtype =
                torch_dtype(view.dtype).value_or(c10::ScalarType::Undefined),
            .dtype_name = std::string(safetensors::dtype_name(view.dtype)),
            .shape = view.shape,
            .position = static_cast<std::uint64_t>(
                view.data.data() - file.bytes().data())});
  }
}

at::Tensor WeightsFile::read(const std::string& name, ReadMemory memory) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw safetensors::TensorNotFoundError(str_cat(
        "[safetensors] '",
        path().string(),
        "' has no tensor '",
        name,
        "'. Check the name"));
  }
  const auto& entry = found->second;
  if (entry.dtype == c10::ScalarType::Undefined) {
    throw DataError(str_cat(
        "[safetensors] '",
        name,
        "' in '",
        path().string(),
        "' has the dtype ",
        entry.dtype_name,
        ", which torch does not support. Write it with another dtype"));
  }
  auto tensor = new_tensor(entry.shape, entry.dtype, memory);
  fill(reader_, entry.position, tensor);
  return tensor;
}

at::Tensor read_plain_tensor(
    const std::filesystem::path& path,
    std::vector<std::int64_t> shape,
    c10::ScalarType dtype,
    ReadMemory memory) {
  const FileReader reader(path, "[offload]");
  const std::size_t size = num_bytes(shape, dtype);
  if (reader.size() != size) {
    throw DataError(str_cat(
        "[offload] '",
        path.string(),
        "' has ",
        reader.size(),
        " bytes, but a tensor of dtype ",
        dtype,
        " and shape ",
        at::IntArrayRef(shape),
        " has ",
        size,
        ". Offload the model again"));
  }
  auto tensor = new_tensor(shape, dtype, memory);
  fill(reader, 0, tensor);
  return tensor;
}

} // namespace accelerate
