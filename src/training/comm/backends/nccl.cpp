// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "accelerate/distributed/c10d.h"

namespace accelerate {
namespace {

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendArguments& arguments) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = arguments.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(
      arguments.store, arguments.rank, arguments.world_size, options);
}

[[maybe_unused]] const bool has_nccl = [] {
  register_backend(
      {.name = "nccl",
       .devices = {c10::kCUDA},
       .available = [] { return true; },
       .make = make_nccl});
  return true;
}();

} // namespace
} // namespace accelerate
