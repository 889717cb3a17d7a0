// SPDX-License-Identifier: Apache-2.0
// Names, addresses and interfaces as this machine sees them.
#pragma once

#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

struct NetworkInterface {
  std::string name = {};
  /// As text, without a scope; one entry per address.
  std::string address = {};
  bool is_loopback = false;
  bool is_up = false;
};

/// Every address of this machine, in the system's order.
ACCELERATE_API std::vector<NetworkInterface> list_interfaces();

/// The addresses of a name, IPv4 first. Throws `CommError` naming the host and
/// the resolver's answer where there are none. May block on a name server.
ACCELERATE_API std::vector<std::string> resolve_host(const std::string& host);

/// Whether an address, as text, never leaves the machine.
ACCELERATE_API bool is_loopback(const std::string& address);

/// Whether a name means this machine wherever it is looked up. The machine's
/// own name does not, though it may lead to a loopback address here.
ACCELERATE_API bool is_loopback_name(const std::string& host);

/// Whether one of the addresses of `host` belongs to this machine.
ACCELERATE_API bool is_this_machine(const std::string& host);

/// The address of this machine that a peer at `address` sees; empty where there
/// is no route.
ACCELERATE_API std::string own_address_towards(const std::string& address);

/// Whether the machine at `address` answers that nobody listens on `port`.
/// Waits for an answer for a second.
ACCELERATE_API bool is_refused_at(const std::string& address, int port);

/// The interface through which packets to `address` leave; empty where there
/// is no route.
ACCELERATE_API std::string interface_towards(const std::string& address);

} // namespace accelerate
