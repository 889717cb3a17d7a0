// SPDX-License-Identifier: Apache-2.0
#include "training/comm/raw_check.h"

#include <c10/util/ScopeExit.h>

#include "training/comm/agreement.h"
#include "training/comm/process_group_impl.h"

namespace accelerate {

void check_raw(
    const ProcessGroup& group,
    const std::string& operation,
    const std::vector<at::Tensor>& tensors) {
  ProcessGroup::Impl& impl = *group.impl();
  if (!impl.checks_collectives()) {
    return;
  }
  // Disable checks, because the comparison itself uses raw collectives.
  impl.set_checks_collectives(false);
  const auto restore =
      c10::make_scope_exit([&] { impl.set_checks_collectives(true); });
  agree(group, operation, {tensors, ""}, {});
}

} // namespace accelerate
