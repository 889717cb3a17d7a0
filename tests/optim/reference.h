// SPDX-License-Identifier: Apache-2.0
// Files of tests/reference, and the values that their generators start from.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace accelerate::testing {

/// A tensor of `tests/reference/<file>.safetensors`.
at::Tensor reference(const std::string& file, const std::string& name);
std::string reference_metadata(const std::string& file, const std::string& key);

/// Multiples of 1/128 in [-1, 1], as in tools/make_optimizer_reference.py.
at::Tensor fractions(at::IntArrayRef shape, int64_t salt, int64_t factor);

} // namespace accelerate::testing
