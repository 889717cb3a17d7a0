// SPDX-License-Identifier: Apache-2.0
// The page of `accelerate watch`, with access control.
#pragma once

#include <string>

#include "launcher/watch/page_server.h"
#include "launcher/watch/run_list.h"

namespace accelerate {

/// Answers requests for the page and its data. Every request must name this
/// machine as its host, so that names of other sites cannot lead here. It must
/// also contain the token: the first request in the address, all others in a
/// cookie. No part of a request ever becomes a part of a path: runs and logs
/// are indices into lists.
class WatchPage {
 public:
  WatchPage(RunList& runs, std::string token);

  PageAnswer answer(const PageRequest& request);

 private:
  bool knows_token(const PageRequest& request) const;
  PageAnswer answer_authenticated(const PageRequest& request);

  RunList& runs_;
  std::string token_;
};

/// A random secret of 32 hexadecimal digits. Throws `SystemError`.
std::string make_token();

} // namespace accelerate
