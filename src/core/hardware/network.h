// SPDX-License-Identifier: Apache-2.0
// Host names, addresses and network interfaces.
#pragma once

#include <string>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

struct NetworkInterface {
  std::string name = {};
  /// The address as text, without a scope. There is one entry per address.
  std::string address = {};
  bool is_loopback = false;
  bool is_up = false;
};

/// All addresses of this machine, in the system's order.
ACCELERATE_INTERNAL std::vector<NetworkInterface> list_interfaces();

/// The addresses of a name, IPv4 first. Throws a `CommError` that names the
/// host and the resolver's answer if there are none. May block on a name
/// server.
ACCELERATE_INTERNAL std::vector<std::string> resolve_host(
    const std::string& host);

/// Whether a numeric address never leaves the machine.
ACCELERATE_INTERNAL bool is_loopback(const std::string& address);

/// Whether a name means this machine wherever it is resolved. False for the
/// machine's own name, even if it resolves to a loopback address here.
ACCELERATE_INTERNAL bool is_loopback_name(const std::string& host);

/// Whether one of the addresses of `host` belongs to this machine.
ACCELERATE_INTERNAL bool is_this_machine(const std::string& host);

/// The address of this machine that a peer at `address` sees. Empty without a
/// route.
ACCELERATE_INTERNAL std::string own_address_towards(const std::string& address);

/// Whether the machine at `address` refuses connections to `port`. Waits up to
/// a second for an answer.
ACCELERATE_INTERNAL bool is_refused_at(const std::string& address, int port);

/// The interface through which packets to `address` leave. Empty without a
/// route.
ACCELERATE_INTERNAL std::string interface_towards(const std::string& address);

} // namespace accelerate
