// SPDX-License-Identifier: Apache-2.0
// Work that fails on all ranks if it fails on one.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "accelerate/distributed/process_group.h"

namespace accelerate {

/// Runs `work` on all ranks. If it throws on one, every rank throws the same:
/// the first such rank's error, with its type and rank. An exception of another
/// library is rethrown unchanged where it occurred. Collective.
void do_together(
    const ProcessGroup& group,
    const std::string& operation,
    const std::function<void()>& work);

/// As above for completed work: `own` is the error of this rank, null if there
/// was none.
void fail_together(
    const ProcessGroup& group,
    const std::string& operation,
    const std::exception_ptr& own);

} // namespace accelerate
