// SPDX-License-Identifier: Apache-2.0
// TCP sockets by host name and port.
#pragma once

#include <string>

#include "core/base/internal.h"
#include "core/base/unique_file.h"

namespace accelerate {

/// Listens on the first address of `host` that belongs to this machine, or on
/// all addresses if `host` is empty. Throws `ConfigError` if the address is not
/// this machine's, or if the port is in use. The message then names the owner
/// of the port.
ACCELERATE_INTERNAL UniqueFile listen_on(const std::string& host, int port);

/// Starts to connect to the first address of `host`. The socket becomes
/// writable on success or failure (`connect_error`). Throws `CommError` if the
/// name has no address.
ACCELERATE_INTERNAL UniqueFile begin_connect(const std::string& host, int port);

/// 0 if connected, else the errno of the failure.
ACCELERATE_INTERNAL int connect_error(int socket);

/// The peer's address as text.
std::string peer_address(int socket);

} // namespace accelerate
