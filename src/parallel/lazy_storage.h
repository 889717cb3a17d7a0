// SPDX-License-Identifier: Apache-2.0
// Memory of tensors that comes when an operator reads it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "accelerate/process_group.h"

namespace accelerate {

class ParallelEngine;

/// The ranks that bring memory together.
struct MemorySharers {
  std::shared_ptr<ParallelEngine> engine;
  /// Those that hold parts of one copy of the model, and all.
  ProcessGroup group;
  ProcessGroup everyone;
  /// Whether operators may read now.
  bool may_read = false;
};

/// Whoever brings the memory of a `LazyStorage`.
class MemoryOwner {
 public:
  virtual ~MemoryOwner() = default;
  /// An operator is about to read: when this returns, the storage is filled,
  /// and stays so until `end_use`. Throws where nobody may read now.
  virtual void begin_use() = 0;
  virtual void end_use() noexcept = 0;
  /// Nothing where it brings the memory alone.
  virtual std::optional<MemorySharers> sharers() { return std::nullopt; }
};

/// A storage whose memory comes and goes under the tensors that lie in it, and
/// under all their views, saved ones too. Operators on such a tensor pass a
/// dispatch key below autograd, which asks the owner for the memory; those that
/// write are refused, and those that only make views need no memory. Whoever
/// reads the pointer without an operator gets an exception while there is none.
class LazyStorage {
 public:
  /// Empty. `name` stands in messages ("unit 'layers.0'").
  LazyStorage(
      int64_t num_bytes,
      c10::Device device,
      std::weak_ptr<MemoryOwner> owner,
      const std::string& name);

  /// Takes the memory out of `memory`, which nobody may use any more.
  void fill(const at::Tensor& memory);
  void empty();

  /// A tensor in it, contiguous, from the number `offset` on.
  at::Tensor tensor(int64_t offset, at::IntArrayRef sizes, at::ScalarType dtype)
      const;
  /// Makes `tensor`, with its identity, such a one of this dtype.
  void move_in(const at::Tensor& tensor, int64_t offset, at::ScalarType dtype)
      const;

 private:
  c10::Storage storage_;
  std::weak_ptr<MemoryOwner> owner_;
  std::string name_;
};

/// Whether it lies in a lazy storage, with or without memory.
bool is_lazy(const at::Tensor& tensor);

/// Nothing where it lies elsewhere, or its owner is gone.
std::optional<MemorySharers> memory_sharers(const at::Tensor& tensor);

/// Registers the key at the first call and tries it out. Throws `ConfigError`
/// where this torch does not treat it as above.
void check_lazy_storage();

} // namespace accelerate
