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
  /// Empty if the owner provides the memory without other ranks.
  virtual std::optional<MemorySharers> sharers() { return std::nullopt; }
};

/// A storage whose memory can be attached to and detached from its tensors and
/// all their views, including saved ones. A dispatch key below autograd
/// requests the memory from the owner when an operator reads such a tensor.
/// Operators that write are rejected. Operators that only create views need no
/// memory. Reading the pointer without an operator throws while the memory is
/// detached.
class LazyStorage {
 public:
  /// Starts without memory. `name` appears in messages ("unit 'layers.0'").
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
  /// Moves `tensor` to this storage with this dtype. The tensor object stays
  /// the same.
  void move_in(const at::Tensor& tensor, int64_t offset, at::ScalarType dtype)
      const;

 private:
  c10::Storage storage_;
  std::weak_ptr<MemoryOwner> owner_;
  std::string name_;
};

/// Whether the tensor is in a lazy storage, with or without memory.
bool is_lazy(const at::Tensor& tensor);

/// Empty if the tensor is not in a lazy storage, or the owner is gone.
std::optional<MemorySharers> memory_sharers(const at::Tensor& tensor);

/// Registers and tests the dispatch key at the first call. Throws `ConfigError`
/// if this version of torch does not handle it as described above.
void check_lazy_storage();

} // namespace accelerate
