// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/memory_layout.h"

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/state/page_allocator.h"

namespace accelerate {
namespace {

c10::DataPtr
allocate_on(c10::Device device, c10::Allocator& allocator, size_t num_bytes) {
  auto memory = allocator.allocate(num_bytes);
  if (device.has_index() ? memory.device() != device
                         : memory.device().type() != device.type()) {
    throw UsageError(str_cat(
        "[prepare] The MemoryOptions allocator returned memory on ",
        memory.device(),
        ", but the model is on ",
        device));
  }
  return memory;
}

} // namespace

c10::Allocator* MemoryLayout::allocator(MemoryUse use) const {
  return use == MemoryUse::kParameters ? options_.parameters
                                       : options_.gradients;
}

void MemoryLayout::set_units(
    const std::vector<at::Tensor>& parameters,
    std::vector<std::vector<size_t>> units,
    int64_t alignment) {
  units_.clear();
  for (auto& members : units) {
    Unit unit;
    for (const size_t member : members) {
      const auto& first = parameters.at(members.front());
      const auto& parameter = parameters.at(member);
      if (parameter.scalar_type() != first.scalar_type() ||
          parameter.device() != first.device()) {
        throw UsageError(str_cat(
            "[prepare] One shard unit mixes ",
            c10::toString(first.scalar_type()),
            " parameters on ",
            first.device(),
            " with ",
            c10::toString(parameter.scalar_type()),
            " parameters on ",
            parameter.device(),
            ". Use one dtype and device per unit"));
      }
      const int64_t offset =
          (unit.num_elements + alignment - 1) / alignment * alignment;
      unit.offsets.push_back(offset);
      unit.num_elements = offset + parameter.numel();
    }
    unit.parameters = std::move(members);
    units_.push_back(std::move(unit));
  }
}

at::Tensor MemoryLayout::reserve(
    MemoryUse use,
    int64_t num_elements,
    const at::TensorOptions& options) const {
  auto* target = allocator(use);
  const auto num_bytes =
      static_cast<size_t>(num_elements) * options.dtype().itemsize();
  if (target == nullptr && options.device().is_cpu() &&
      !options.pinned_memory() && num_bytes >= kSmallestPages) {
    target = &page_allocator();
  }
  if (target == nullptr) {
    return at::empty({num_elements}, options);
  }
  return at::empty({0}, options)
      .set_(
          c10::Storage(
              c10::Storage::use_byte_size_t(),
              num_bytes,
              allocate_on(options.device(), *target, num_bytes),
              target,
              /*resizable=*/false),
          0,
          {num_elements});
}

at::Tensor MemoryLayout::allocate(
    MemoryUse use,
    int64_t num_elements,
    const at::TensorOptions& options) const {
  return reserve(use, num_elements, options).zero_();
}

std::vector<at::Tensor> MemoryLayout::views(
    const Unit& unit,
    const at::Tensor& flat,
    const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> views;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const auto& parameter = parameters.at(unit.parameters[i]);
    views.push_back(flat.narrow(0, unit.offsets[i], parameter.numel())
                        .view(parameter.sizes()));
  }
  return views;
}

void MemoryLayout::move_in(MemoryUse use, const at::Tensor& tensor) const {
  c10::Allocator* target = allocator(use);
  if (target == nullptr || tensor.storage().allocator() == target) {
    return;
  }
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const size_t num_bytes = storage->nbytes();
  auto memory = allocate_on(tensor.device(), *target, num_bytes);
  // Copy with tensors, so that the copy is ordered on the device's current
  // stream.
  const auto bytes = at::TensorOptions(at::kByte).device(tensor.device());
  const auto size = static_cast<int64_t>(num_bytes);
  at::from_blob(memory.get(), {size}, bytes)
      .copy_(at::from_blob(storage->mutable_data(), {size}, bytes));
  // The previous memory is released after the copy has been queued.
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_allocator(target);
}

} // namespace accelerate
