// SPDX-License-Identifier: Apache-2.0
// JSON requests over HTTP.
#pragma once

#include <memory>
#include <string>

namespace accelerate {

struct HttpLogin {
  /// A bearer token. If it is empty, the user and password are sent, if given.
  std::string token = {};
  std::string user = {};
  std::string password = {};
};

struct HttpAnswer {
  long status = 0;
  std::string body = {};
};

/// The connection to one server, used by one thread. A request takes at most
/// ten seconds.
class HttpClient {
 public:
  /// `root` begins with `http://` or `https://`. Throws `UsageError` if the
  /// library was built without libcurl, or it is not installed.
  HttpClient(std::string root, const HttpLogin& login);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Throws `SystemError` if there is no answer.
  HttpAnswer post(const std::string& path, const std::string& json);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace accelerate
