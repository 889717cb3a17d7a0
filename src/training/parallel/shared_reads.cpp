// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/shared_reads.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "training/comm/agreement.h"
#include "training/parallel/engine.h"

namespace accelerate {

SharedReads::SharedReads(
    std::string operation,
    const std::vector<at::Tensor>& parameters)
    : operation_(std::move(operation)) {
  const auto lazy = std::find_if(parameters.begin(), parameters.end(), is_lazy);
  if (lazy == parameters.end()) {
    return;
  }
  are_spread_ = true;
  sharers_ = memory_sharers(*lazy);
  if (sharers_) {
    announce(sharers_->group, operation_);
  }
}

bool SharedReads::is_main() const {
  return !sharers_ || sharers_->everyone.rank() == 0;
}

void SharedReads::run(const std::function<void()>& work) const {
  const at::NoGradGuard no_grad;
  if (!sharers_ || sharers_->may_read) {
    work();
    return;
  }
  try {
    sharers_->engine->before_forward();
    work();
    sharers_->engine->after_forward({});
  } catch (...) {
    sharers_->engine->abandon_forward();
    throw;
  }
}

bool SharedReads::is_on_any_rank(bool flag) const {
  return sharers_
             ? accelerate::is_on_any_rank(sharers_->group, operation_, flag)
             : flag;
}

} // namespace accelerate
