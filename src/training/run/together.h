// SPDX-License-Identifier: Apache-2.0
// Work that fails on all ranks if it fails on one.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "accelerate/distributed/process_group.h"

namespace accelerate {

/// Runs `work` on all ranks. If it throws on any rank, every rank throws the
/// error of the lowest such rank, with its type and rank. An exception of
/// another library is rethrown unchanged on its own rank. Collective.
void do_together(
    const ProcessGroup& group,
    const std::string& operation,
    const std::function<void()>& work);

/// Like `do_together` for completed work. `own` is the error of this rank, null
/// if there was none.
void fail_together(
    const ProcessGroup& group,
    const std::string& operation,
    const std::exception_ptr& own);

} // namespace accelerate
