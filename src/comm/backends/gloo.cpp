// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/backends/backends.h"

namespace accelerate {

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendArguments& arguments) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(arguments.timeout);
  options->devices.push_back(
      arguments.interface.empty()
          ? Gloo::createDeviceForHostname(arguments.address)
          : Gloo::createDeviceForInterface(arguments.interface));
  // Two threads: DDP has a bucket in flight while the next one fills.
  options->threads = 2;
  return c10::make_intrusive<Gloo>(
      arguments.store, arguments.rank, arguments.world_size, options);
}

} // namespace accelerate
