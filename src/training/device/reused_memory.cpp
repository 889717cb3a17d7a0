// SPDX-License-Identifier: Apache-2.0
#include "training/device/reused_memory.h"

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>

#include <utility>

namespace accelerate {
namespace {

/// Memory of a storage that keeps `owner` alive.
c10::DataPtr data_owned_by(const at::Tensor& owner, void* data) {
  return {
      data,
      new at::Tensor(owner),
      [](void* kept) { delete static_cast<at::Tensor*>(kept); },
      owner.device()};
}

c10::weak_intrusive_ptr<c10::StorageImpl> nothing() {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(
      c10::intrusive_ptr<c10::StorageImpl>());
}

} // namespace

size_t ReusedMemory::add(const at::Tensor& tensor) {
  entries_.push_back({tensor.detach(), nothing()});
  return entries_.size() - 1;
}

at::Tensor ReusedMemory::tensor_on(Entry& entry) {
  const auto& memory = entry.memory;
  // Not a view, because `reclaim` changes the storage of the result.
  auto bytes = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      memory.storage().nbytes(),
      data_owned_by(memory, memory.storage().mutable_data()),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  entry.handed_out = c10::weak_intrusive_ptr<c10::StorageImpl>(bytes);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(bytes)),
      memory.unsafeGetTensorImpl()->key_set(),
      memory.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      memory.sizes(), memory.strides(), memory.storage_offset());
  return tensor;
}

std::vector<at::Tensor> ReusedMemory::hand_out(
    const std::vector<size_t>& indices) {
  std::vector<at::Tensor> result;
  result.reserve(indices.size());
  for (const auto index : indices) {
    result.push_back(tensor_on(entries_.at(index)));
  }
  return result;
}

void ReusedMemory::hand_out_gradients(
    const std::vector<size_t>& indices,
    const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < indices.size(); ++i) {
    parameters.at(i).mutable_grad() = tensor_on(entries_.at(indices[i]));
  }
}

void ReusedMemory::reclaim(const std::vector<size_t>& indices) {
  const at::NoGradGuard no_grad;
  for (const auto index : indices) {
    auto& entry = entries_.at(index);
    if (const auto storage = entry.handed_out.lock()) {
      const auto& memory = entry.memory;
      auto bytes = at::empty({0}, memory.options().dtype(at::kByte));
      bytes.set_(
          memory.storage(), 0, {static_cast<int64_t>(storage->nbytes())}, {1});
      const auto copy = bytes.clone();
      storage->set_data_ptr_noswap(
          data_owned_by(copy, copy.mutable_data_ptr()));
      entry.handed_out = nothing();
    }
  }
}

bool ReusedMemory::owns(size_t index, const at::Tensor& tensor) const {
  const auto& entry = entries_.at(index);
  return tensor.defined() && tensor.has_storage() &&
         tensor.const_data_ptr() == entry.memory.const_data_ptr() &&
         tensor.scalar_type() == entry.memory.scalar_type() &&
         tensor.sizes() == entry.memory.sizes() &&
         tensor.strides() == entry.memory.strides() &&
         entry.handed_out.lock().get() ==
             tensor.storage().unsafeGetStorageImpl();
}

} // namespace accelerate
