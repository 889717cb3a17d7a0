// SPDX-License-Identifier: Apache-2.0
// The engines that carry collectives, one file each.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accelerate {

/// What a backend is made from.
struct BackendArguments {
  c10::intrusive_ptr<c10d::Store> store;
  int rank;
  int world_size;
  std::chrono::milliseconds timeout;
  /// Where Gloo binds its sockets: a network interface, or where that is empty
  /// an address of this machine.
  std::string interface;
  std::string address;
};

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendArguments& arguments);

/// Whether this build can make NCCL groups.
bool nccl_is_available();
/// Throws `ConfigError` where this build has no NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendArguments& arguments);

} // namespace accelerate
