// SPDX-License-Identifier: Apache-2.0
// Replaces http_curl.cpp if libcurl's headers were not found.
#include "accelerate/error.h"
#include "core/tracking/http.h"

namespace accelerate {

struct HttpClient::Impl {};

HttpClient::HttpClient(std::string, const HttpLogin&) {
  throw UsageError(
      "[init_trackers] The tracker 'mlflow' needs libcurl, but this library "
      "was built without it. Install libcurl4-openssl-dev and build again");
}
HttpClient::~HttpClient() = default;
HttpAnswer HttpClient::post(const std::string&, const std::string&) {
  return {};
}

} // namespace accelerate
