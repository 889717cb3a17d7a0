// SPDX-License-Identifier: Apache-2.0
// Where the parameters and gradients of one model are stored.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/distributed/memory_options.h"
#include "core/base/internal.h"
#include "training/state/parameter_set.h"

namespace accelerate {

/// The only owner of memory for parameters and gradients. Engines decide which
/// parameters belong together, and this class decides where they are stored.
/// Copies share no memory.
class ACCELERATE_INTERNAL MemoryLayout {
 public:
  /// Parameters that are stored, sent or gathered together.
  struct Unit {
    /// Indices into the engine's list of parameters, in storage order.
    std::vector<size_t> parameters = {};
    /// The offset of each parameter, in elements from the beginning of the
    /// unit.
    std::vector<int64_t> offsets = {};
    int64_t num_elements = 0;
  };

  MemoryLayout() = default;
  explicit MemoryLayout(MemoryOptions options) : options_(options) {}

  /// Defines units of `parameters` by lists of indices. The parameters of a
  /// unit have one device and dtype. They are stored one after the other,
  /// aligned to `alignment` elements.
  void set_units(
      const std::vector<at::Tensor>& parameters,
      std::vector<std::vector<size_t>> units,
      int64_t alignment = 1);
  /// Empty if every parameter keeps the memory of its model.
  const std::vector<Unit>& units() const { return units_; }

  /// An uninitialised flat tensor of `num_elements` elements.
  at::Tensor reserve(
      MemoryUse use,
      int64_t num_elements,
      const at::TensorOptions& options) const;
  /// Like `reserve`, but filled with zeros.
  at::Tensor allocate(
      MemoryUse use,
      int64_t num_elements,
      const at::TensorOptions& options) const;
  /// Views of a unit's flat tensor, with the shapes of its parameters.
  std::vector<at::Tensor> views(
      const Unit& unit,
      const at::Tensor& flat,
      const std::vector<at::Tensor>& parameters) const;
  /// Moves memory that other code has allocated to the right allocator. The
  /// tensor's storage, and every view of it, keeps its identity and values. No
  /// effect if torch's own allocator is used.
  void move_in(MemoryUse use, const at::Tensor& tensor) const;

 private:
  c10::Allocator* allocator(MemoryUse use) const;

  MemoryOptions options_;
  std::vector<Unit> units_;
};

} // namespace accelerate
