// SPDX-License-Identifier: Apache-2.0
#include "optim/reference.h"

#include <torch/torch.h>

#include "accelerate/safetensors.h"

namespace accelerate::testing {
namespace {

safetensors::File open(const std::string& file) {
  return safetensors::File(
      std::filesystem::path(TEST_REFERENCE_DIR) / (file + ".safetensors"));
}

} // namespace

at::Tensor reference(const std::string& file, const std::string& name) {
  const auto source = open(file);
  const auto& view = source.tensor(name);
  const auto type =
      view.dtype == safetensors::Dtype::kF64 ? torch::kDouble : torch::kFloat;
  return torch::from_blob(
             const_cast<std::byte*>(view.data.data()), view.shape, type)
      .clone();
}

std::string reference_metadata(
    const std::string& file,
    const std::string& key) {
  return open(file).metadata().at(key);
}

at::Tensor fractions(at::IntArrayRef shape, int64_t salt, int64_t factor) {
  const auto count = torch::arange(c10::multiply_integers(shape));
  return ((count * factor + salt).remainder(257) - 128)
      .to(torch::kFloat)
      .div(128)
      .reshape(shape);
}

} // namespace accelerate::testing
