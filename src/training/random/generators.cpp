// SPDX-License-Identifier: Apache-2.0
#include "training/random/generators.h"

#include <ATen/Context.h>

#include <mutex>

namespace accelerate {

at::Generator default_generator(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

at::Tensor generator_state(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

} // namespace accelerate
