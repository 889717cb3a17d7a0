// SPDX-License-Identifier: Apache-2.0
// Work that fails on all ranks if it fails on one.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "accelerate/process_group.h"

namespace accelerate {

/// Does it on all ranks. If it throws on one, every rank throws the same: the
/// first such rank's error, under its type and with its rank. An exception that
/// is not of this library is thrown as it is where it arose. A collective.
void do_together(
    const ProcessGroup& group,
    const std::string& operation,
    const std::function<void()>& work);

/// The same for work that is done: `own` is what went wrong on this rank, null
/// if nothing did.
void fail_together(
    const ProcessGroup& group,
    const std::string& operation,
    const std::exception_ptr& own);

} // namespace accelerate
