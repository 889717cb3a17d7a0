// SPDX-License-Identifier: Apache-2.0
// Requests to a server that speaks JSON over HTTP.
#pragma once

#include <memory>
#include <string>

namespace accelerate {

struct HttpLogin {
  /// A bearer token; else a user with a password, where one is named.
  std::string token = {};
  std::string user = {};
  std::string password = {};
};

struct HttpAnswer {
  long status = 0;
  std::string body = {};
};

/// One server; used by one thread. A request takes ten seconds at most.
class HttpClient {
 public:
  /// `root` begins with `http://` or `https://`. Throws `UsageError` where the
  /// library was built without libcurl, or this machine has none.
  HttpClient(std::string root, const HttpLogin& login);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Throws `SystemError` where no answer comes.
  HttpAnswer post(const std::string& path, const std::string& json);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace accelerate
