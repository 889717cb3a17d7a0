// SPDX-License-Identifier: Apache-2.0
// TCP ports of this machine: which are free, and which programs use others.
#pragma once

#include <string>

#include "core/base/internal.h"

namespace accelerate {

/// A random port on which nothing listens at `address` ("" means all
/// addresses), if possible below the ephemeral range. Throws `SystemError` if
/// there is none.
ACCELERATE_INTERNAL int find_free_port(
    const std::string& address = "127.0.0.1");

/// Why a program could not listen on `port` of all addresses now: "is taken by
/// pid 4711 (python3)" ("another program" if it belongs to a user whose
/// processes cannot be inspected), "needs rights ...". Empty if it could.
ACCELERATE_INTERNAL std::string port_problem(int port);

/// The problem of an attempt to listen that failed with the errno `cause`.
ACCELERATE_INTERNAL std::string port_problem(int port, int cause);

} // namespace accelerate
