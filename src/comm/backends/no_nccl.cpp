// SPDX-License-Identifier: Apache-2.0
#include "accelerate/error.h"
#include "comm/backends/backends.h"

namespace accelerate {

bool nccl_is_available() {
  return false;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendArguments&) {
  throw ConfigError(
      "[connect] this library was built with a torch that has no NCCL; choose "
      "Backend::kGloo or build it with a CUDA torch");
}

} // namespace accelerate
