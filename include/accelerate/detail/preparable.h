// SPDX-License-Identifier: Apache-2.0
// Concepts for the objects that `Accelerator::prepare` accepts.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>

#include "accelerate/data_loader.h"
#include "accelerate/optimizer.h"
#include "accelerate/prepared_model.h"

namespace accelerate::detail {

template <class T>
struct SharedModule {};
template <std::derived_from<torch::nn::Module> M>
struct SharedModule<std::shared_ptr<M>> {
  using Module = M;
};

/// The holders that TORCH_MODULE defines.
template <class T>
concept ModuleHolder = requires(const T& holder) {
  typename T::ContainedType;
  { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};
template <class T>
concept ModulePointer = ModuleHolder<T> || requires {
  typename SharedModule<T>::Module;
};

template <class T>
struct ModuleOfPointer : SharedModule<T> {};
template <ModuleHolder T>
struct ModuleOfPointer<T> {
  using Module = typename T::ContainedType;
};
template <class T>
using ModuleOf = typename ModuleOfPointer<T>::Module;

template <class T>
std::shared_ptr<ModuleOf<T>> module_of(const T& object) {
  if constexpr (ModuleHolder<T>) {
    return object.is_empty() ? nullptr : object.ptr();
  } else {
    return object;
  }
}

template <class T>
inline constexpr bool IsDataLoader = false;
template <class D, class Collate>
inline constexpr bool IsDataLoader<DataLoader<D, Collate>> = true;

template <class T>
inline constexpr bool IsPrepared = std::is_same_v<T, PreparedOptimizer>;
template <class M>
inline constexpr bool IsPrepared<PreparedModel<M>> = true;

/// A pointer to a module that is not a `std::shared_ptr`.
template <class T>
concept OtherModulePointer =
    !ModulePointer<T> && !IsPrepared<T> && requires(const T& pointer) {
  requires std::
      derived_from<std::remove_cvref_t<decltype(*pointer)>, torch::nn::Module>;
};

/// Matches torch::data's loaders and pointers to them, without including their
/// header.
template <class T>
concept LooksLikeTorchDataLoader = requires(T& loader) {
  typename T::BatchType;
  loader.join();
  loader.begin();
};
template <class T>
concept TorchDataLoader = LooksLikeTorchDataLoader<T> || requires(T& pointer) {
  requires LooksLikeTorchDataLoader<
      std::remove_reference_t<decltype(*pointer)>>;
};

} // namespace accelerate::detail
