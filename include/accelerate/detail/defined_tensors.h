// SPDX-License-Identifier: Apache-2.0
// Struct members that are defined tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <vector>

namespace accelerate::models::detail {

/// Selects the members that are defined tensors, for `tensor_fields`. Outputs
/// that a model does not compute are therefore not part of the tree.
class DefinedTensors {
 public:
  class Iterator {
   public:
    explicit Iterator(at::Tensor* const* position) : position_(position) {}
    at::Tensor& operator*() const { return **position_; }
    Iterator& operator++() {
      ++position_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    at::Tensor* const* position_;
  };
  DefinedTensors(std::initializer_list<at::Tensor*> tensors) {
    for (auto* tensor : tensors) {
      if (tensor->defined()) {
        tensors_.push_back(tensor);
      }
    }
  }
  size_t size() const { return tensors_.size(); }
  Iterator begin() const { return Iterator(tensors_.data()); }
  Iterator end() const { return Iterator(tensors_.data() + size()); }

 private:
  std::vector<at::Tensor*> tensors_;
};

} // namespace accelerate::models::detail
