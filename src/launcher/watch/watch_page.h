// SPDX-License-Identifier: Apache-2.0
// The page of `accelerate watch`: who may see what.
#pragma once

#include <string>

#include "core/base/internal.h"
#include "launcher/watch/page_server.h"
#include "launcher/watch/run_list.h"

namespace accelerate {

/// Answers requests for the page and for what it shows. Every request has to
/// name this machine as its host, so that no other site's name leads here, and
/// to bring the token, which the first one brings in the address and all others
/// in a cookie. No part of a request ever becomes a part of a path: runs and
/// logs are numbers in lists.
class ACCELERATE_INTERNAL WatchPage {
 public:
  WatchPage(RunList& runs, std::string token);

  PageAnswer answer(const PageRequest& request);

 private:
  bool knows_token(const PageRequest& request) const;
  PageAnswer answer_known(const PageRequest& request);

  RunList& runs_;
  std::string token_;
};

/// 32 hexadecimal digits that nobody guesses. Throws `SystemError`.
ACCELERATE_INTERNAL std::string make_token();

} // namespace accelerate
