// SPDX-License-Identifier: Apache-2.0
// The states of torch's default generators as tensors.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace accelerate {

/// The default generator of torch for a device.
at::Generator default_generator(c10::Device device);

/// The state as a byte tensor on the CPU.
at::Tensor generator_state(at::Generator generator);
void set_generator_state(at::Generator generator, const at::Tensor& state);

} // namespace accelerate
