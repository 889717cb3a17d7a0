// SPDX-License-Identifier: Apache-2.0
// Replaces page_server_microhttpd.cpp if libmicrohttpd's header was not found.
#include "accelerate/error.h"
#include "launcher/watch/page_server.h"

namespace accelerate {

struct PageServer::Impl {};

PageServer::PageServer(int, Answer) {
  throw UsageError(
      "[watch] This build of accelerate lacks libmicrohttpd. Install "
      "libmicrohttpd-dev and build accelerate again");
}
PageServer::~PageServer() = default;
int PageServer::port() const {
  return 0;
}
void PageServer::close_slow_connections() {}

} // namespace accelerate
