// SPDX-License-Identifier: Apache-2.0
#include "accelerate/error.h"
#include "comm/backends/backends.h"

namespace accelerate {

BackendEntry nccl_backend() {
  return {
      .name = "nccl",
      .devices = {c10::kCUDA},
      .available = [] { return false; },
      .make = [](const BackendArguments&) -> c10::intrusive_ptr<c10d::Backend> {
        throw ConfigError(
            "[connect] this library was built with a torch that has no NCCL; "
            "choose Backend::kGloo or build it with a CUDA torch");
      }};
}

} // namespace accelerate
