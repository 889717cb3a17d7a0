// SPDX-License-Identifier: Apache-2.0
// TCP sockets by name and port.
#pragma once

#include <string>

#include "accelerate/export.h"
#include "base/unique_file.h"

namespace accelerate {

/// Listens on the first address of `host` that belongs to this machine, or on
/// all addresses where `host` is empty. Throws `ConfigError` where the address
/// is not this machine's or the port is taken, naming the owner.
ACCELERATE_API UniqueFile listen_on(const std::string& host, int port);

/// Begins to connect to the first address of `host`; the socket is writable
/// once that has worked or failed (`connect_error`). Throws `CommError` where
/// the name has no address.
ACCELERATE_API UniqueFile begin_connect(const std::string& host, int port);

/// 0 where the connection stands, else the cause as in errno.
ACCELERATE_API int connect_error(int socket);

/// The peer's address as text.
ACCELERATE_API std::string peer_address(int socket);

} // namespace accelerate
