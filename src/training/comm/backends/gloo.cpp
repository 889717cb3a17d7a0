// SPDX-License-Identifier: Apache-2.0
#include <gloo/common/error.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/base/str.h"
#include "training/comm/backends/backends.h"

namespace accelerate {
namespace {

using Gloo = c10d::ProcessGroupGloo;
using Devices = decltype(Gloo::Options::devices);

Devices devices_for(const BackendArguments& arguments) {
  if (auto* parent = dynamic_cast<Gloo*>(arguments.parent.get())) {
    return parent->getOptions()->devices;
  }
  if (!arguments.interface.empty()) {
    return {Gloo::createDeviceForInterface(arguments.interface)};
  }
  if (!arguments.address.empty()) {
    return {Gloo::createDeviceForHostname(arguments.address)};
  }
  return {Gloo::createDefaultDevice()};
}

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendArguments& arguments) {
  auto options = Gloo::Options::create(arguments.timeout);
  options->devices = devices_for(arguments);
  // Two threads, because DDP has a bucket in flight while the next one fills.
  options->threads = 2;
  return c10::make_intrusive<Gloo>(
      arguments.store, arguments.rank, arguments.world_size, options);
}

} // namespace

bool is_gloo_error(const std::exception& error) {
  return dynamic_cast<const gloo::Exception*>(&error) != nullptr;
}

void forget_gloo_address(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank) {
  // c10d's key consists of its first context and the rank.
  const auto key = str_cat("0/", rank);
  try {
    c10d::PrefixStore(gloo_backend().name, store).deleteKey(key);
  } catch (const std::exception&) {
    // If the rank that hosts the store has left, the entry is already gone.
  }
}

BackendEntry gloo_backend() {
  return {
      .name = "gloo",
      .devices = {c10::kCPU, c10::kCUDA},
      .available = [] { return true; },
      .make = make_gloo,
      .sums_after_exchange = true};
}

} // namespace accelerate
