// SPDX-License-Identifier: Apache-2.0
// Where the parameters and gradients of one model lie.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/memory_options.h"
#include "state/parameter_set.h"

namespace accelerate {

/// The one owner of memory for parameters and gradients: engines decide which
/// parameters belong together, this class where they lie. A plain value; copies
/// share no memory.
class ACCELERATE_API MemoryLayout {
 public:
  /// Parameters that lie, travel or are gathered together.
  struct Unit {
    /// Into the engine's list of parameters, in the order in which they lie.
    std::vector<size_t> parameters = {};
    /// Of each, in numbers from the beginning of the unit.
    std::vector<int64_t> offsets = {};
    int64_t num_numbers = 0;
  };

  MemoryLayout() = default;
  explicit MemoryLayout(MemoryOptions options) : options_(options) {}

  /// Units of `parameters` by their lists of indices, each of one device and
  /// dtype, one behind the other, each at a multiple of `alignment` numbers.
  void set_units(
      const std::vector<at::Tensor>& parameters,
      std::vector<std::vector<size_t>> units,
      int64_t alignment = 1);
  /// Empty where every parameter lies where its model has put it.
  const std::vector<Unit>& units() const { return units_; }

  /// A flat tensor of `num_numbers` that nobody has written yet.
  at::Tensor reserve(
      MemoryUse use,
      int64_t num_numbers,
      const at::TensorOptions& options) const;
  /// The same of zeros.
  at::Tensor allocate(
      MemoryUse use,
      int64_t num_numbers,
      const at::TensorOptions& options) const;
  /// Views of a flat tensor of a unit, in the shapes of its parameters.
  std::vector<at::Tensor> views(
      const Unit& unit,
      const at::Tensor& flat,
      const std::vector<at::Tensor>& parameters) const;
  /// Moves what others have allocated to where it belongs: the tensor's
  /// storage, and with it every view, keeps its identity and values and changes
  /// its memory. Nothing where the allocator is torch's own.
  void move_in(MemoryUse use, const at::Tensor& tensor) const;

 private:
  c10::Allocator* allocator(MemoryUse use) const;

  MemoryOptions options_;
  std::vector<Unit> units_;
};

} // namespace accelerate
