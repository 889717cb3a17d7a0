// SPDX-License-Identifier: Apache-2.0
#include "accelerate/process_control.h"

#include <exception>
#include <iostream>

namespace accelerate {

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
    group_.barrier();
  }
}

ProcessControl::FirstGuard::~FirstGuard() noexcept(false) {
  // After an exception the others must not go on as if the work was done.
  if (is_first_ && std::uncaught_exceptions() == num_exceptions_) {
    group_.barrier();
  }
}

ProcessControl::FirstGuard ProcessControl::main_process_first() const {
  return FirstGuard(group_, is_main_process());
}
ProcessControl::FirstGuard ProcessControl::local_main_process_first() const {
  return FirstGuard(group_, is_local_main_process());
}

} // namespace accelerate
