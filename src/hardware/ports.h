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

/// Why a program could not listen on `port` of all addresses now: "is taken by
/// pid 4711 (python3)" ("another program" where it belongs to a user whose
/// processes cannot be looked at), "needs rights ...". Empty where it could.
ACCELERATE_API std::string port_problem(int port);

/// The same for a try that has failed with `cause`, as in errno.
ACCELERATE_API std::string port_problem(int port, int cause);

} // namespace accelerate
