// SPDX-License-Identifier: Apache-2.0
// TCP sockets by host name and port.
#pragma once

#include <string>

#include "accelerate/export.h"
#include "base/unique_file.h"

namespace accelerate {

/// Listens on the first address of `host` that belongs to this machine, or on
/// all addresses if `host` is empty. Throws `ConfigError` if the address is not
/// this machine's or the port is in use, naming the owner.
ACCELERATE_API UniqueFile listen_on(const std::string& host, int port);

/// Starts to connect to the first address of `host`; the socket becomes
/// writable on success or failure (`connect_error`). Throws `CommError` if the
/// name has no address.
ACCELERATE_API UniqueFile begin_connect(const std::string& host, int port);

/// 0 if connected, else the errno of the failure.
ACCELERATE_API int connect_error(int socket);

/// The peer's address as text.
ACCELERATE_API std::string peer_address(int socket);

} // namespace accelerate
