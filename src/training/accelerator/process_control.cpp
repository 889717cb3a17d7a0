// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/process_control.h"

#include <exception>
#include <iostream>

#include "accelerate/error.h"
#include "accelerate/observe/logger.h"
#include "training/comm/agreement.h"
#include "training/comm/failures.h"

namespace accelerate {
namespace {

/// Ranks that run first report at the end whether they have thrown. The others
/// receive the report before they start.
bool has_one_thrown(const ProcessGroup& group, bool own) {
  return is_on_any_rank(group, "main_process_first", own);
}

void throw_where_one_has(const ProcessGroup& group) {
  if (has_one_thrown(group, false)) {
    if (!group.ranks_are_threads()) {
      wait_for_first_failure();
    }
    throw CommError(
        "[main_process_first] The first process to run the block failed; the "
        "original error is above");
  }
}

} // namespace

ProcessControl::ProcessControl(ProcessTopology topology, ProcessGroup group)
    : topology_(topology), group_(std::move(group)) {}

void ProcessControl::write_line(const std::string& line) {
  accelerate::print_line(std::cout, line);
}

void ProcessControl::wait_for_everyone() const {
  agree_on_text(group_, "wait_for_everyone", "");
}

ProcessControl::FirstGuard::FirstGuard(const ProcessGroup& group, bool is_first)
    : group_(group),
      is_first_(is_first),
      num_exceptions_(std::uncaught_exceptions()) {
  if (!is_first_) {
    throw_where_one_has(group_);
  }
}

ProcessControl::FirstGuard::~FirstGuard() noexcept(false) {
  if (!is_first_) {
    return;
  }
  if (std::uncaught_exceptions() == num_exceptions_) {
    throw_where_one_has(group_);
    return;
  }
  try {
    has_one_thrown(group_, true);
  } catch (const Error&) {
    // Ignore this error, because the exception of the block is more
    // informative.
  }
}

ProcessControl::FirstGuard ProcessControl::main_process_first() const {
  return FirstGuard(group_, is_main_process());
}
ProcessControl::FirstGuard ProcessControl::local_main_process_first() const {
  return FirstGuard(group_, is_local_main_process());
}

} // namespace accelerate
