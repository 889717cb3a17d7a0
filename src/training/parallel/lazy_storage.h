// SPDX-License-Identifier: Apache-2.0
// Tensors whose memory is provided when an operator reads them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "accelerate/distributed/process_group.h"

namespace accelerate {

class ParallelEngine;

/// The ranks that provide memory together.
struct MemorySharers {
  std::shared_ptr<ParallelEngine> engine;
  /// The ranks of one replica of the model, and all ranks.
  ProcessGroup group;
  ProcessGroup everyone;
  /// Whether operators may read now.
  bool may_read = false;
};

/// Provides the memory of a `LazyStorage`.
class MemoryOwner {
 public:
  virtual ~MemoryOwner() = default;
  /// Called before an operator reads. On return, the storage is filled until
  /// `end_use`. Throws if reading is not allowed now.
  virtual void begin_use() = 0;
  virtual void end_use() noexcept = 0;
  /// Empty if it provides the memory without other ranks.
  virtual std::optional<MemorySharers> sharers() { return std::nullopt; }
};

/// A storage whose memory can be attached to and detached from its tensors and
/// all their views, including saved ones. Operators on such a tensor are
/// dispatched by a key below autograd, which requests the memory from the
/// owner. Operators that write are rejected, and those that only create views
/// need no memory. Reading the pointer without an operator throws while there
/// is no memory.
class LazyStorage {
 public:
  /// Starts empty. `name` appears in messages ("unit 'layers.0'").
  LazyStorage(
      int64_t num_bytes,
      c10::Device device,
      std::weak_ptr<MemoryOwner> owner,
      const std::string& name);

  /// Takes over the memory of `memory`, which must not be used any more.
  void fill(const at::Tensor& memory);
  void empty();

  /// A contiguous tensor in this storage that starts at element `offset`.
  at::Tensor tensor(int64_t offset, at::IntArrayRef sizes, at::ScalarType dtype)
      const;
  /// Moves `tensor` to this storage with this dtype; it keeps its identity.
  void move_in(const at::Tensor& tensor, int64_t offset, at::ScalarType dtype)
      const;

 private:
  c10::Storage storage_;
  std::weak_ptr<MemoryOwner> owner_;
  std::string name_;
};

/// Whether it is in a lazy storage, with or without memory.
bool is_lazy(const at::Tensor& tensor);

/// Empty if it is not in one, or its owner is gone.
std::optional<MemorySharers> memory_sharers(const at::Tensor& tensor);

/// Registers the key at the first call and tests it. Throws `ConfigError` if
/// this torch does not treat it as described above.
void check_lazy_storage();

} // namespace accelerate
