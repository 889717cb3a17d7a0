// SPDX-License-Identifier: Apache-2.0
#include "accelerate/process_control.h"

#include <ATen/ATen.h>

#include <exception>
#include <iostream>

#include "accelerate/error.h"
#include "comm/failures.h"

namespace accelerate {
namespace {

/// Those who go first say at their end whether they have thrown, the others
/// hear it before they begin.
bool has_one_thrown(const ProcessGroup& group, bool own) {
  auto flag = at::full({1}, own ? 1 : 0, at::kInt);
  group.all_reduce(flag, ReduceOp::kMax);
  return flag.item<int>() != 0;
}

void throw_where_one_has(const ProcessGroup& group) {
  if (has_one_thrown(group, false)) {
    if (!group.ranks_are_threads()) {
      give_culprit_time();
    }
    throw CommError(
        "[main_process_first] a process that went first threw in its block; "
        "see its own messages");
  }
}

} // namespace

ProcessControl::ProcessControl(ProcessTopology topology, ProcessGroup group)
    : topology_(topology), group_(std::move(group)) {}

void ProcessControl::print_line(const std::string& line) const {
  if (is_local_main_process()) {
    std::cout << line + '\n' << std::flush;
  }
}

void ProcessControl::wait_for_everyone() const {
  group_.barrier();
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
    // What the block threw says more.
  }
}

ProcessControl::FirstGuard ProcessControl::main_process_first() const {
  return FirstGuard(group_, is_main_process());
}
ProcessControl::FirstGuard ProcessControl::local_main_process_first() const {
  return FirstGuard(group_, is_local_main_process());
}

} // namespace accelerate
