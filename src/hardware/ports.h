// SPDX-License-Identifier: Apache-2.0
// TCP ports of this machine: which are free, and who has the others.
#pragma once

#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// A port that nobody listens on, on `address` ("" means all addresses), chosen
/// at random below those that the kernel lends to connecting programs where
/// that is possible. Throws `SystemError` where there is none.
ACCELERATE_API int find_free_port(const std::string& address = "127.0.0.1");

/// Whether a program could listen on `port` of all addresses now.
ACCELERATE_API bool is_port_free(int port);

/// "pid 4711 (python3)" of who listens on `port`; "another program" where it
/// belongs to a user whose processes cannot be looked at; empty where nobody
/// listens.
ACCELERATE_API std::string port_owner(int port);

} // namespace accelerate
