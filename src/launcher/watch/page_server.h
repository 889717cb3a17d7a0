// SPDX-License-Identifier: Apache-2.0
// An HTTP server on the loopback interface, implemented with libmicrohttpd.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

struct PageRequest {
  std::string method = {};
  /// The path without URL escapes.
  std::string path = {};
  /// The value of a query parameter.
  std::function<std::optional<std::string>(const char* name)> argument = {};
  std::function<std::optional<std::string>(const char* name)> header = {};
};

struct PageAnswer {
  unsigned status = 200;
  const char* type = "text/plain; charset=utf-8";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// Answers requests one after another in its own thread, with one connection
/// per request. Closes connections that exceed the size and time limits below,
/// and the oldest one if there are too many.
class ACCELERATE_INTERNAL PageServer {
 public:
  static constexpr size_t kMaxConnections = 64;
  static constexpr size_t kMaxHeaderBytes = 16 << 10;
  /// The time limit from accepting a connection to the last byte of its answer.
  static constexpr int kRequestSeconds = 5;

  using Answer = std::function<PageAnswer(const PageRequest&)>;
  /// Listens on 127.0.0.1. Port 0 selects a free port. Throws `SystemError` if
  /// the port is in use, and `UsageError` if libmicrohttpd is missing.
  PageServer(int port, Answer answer);
  ~PageServer();

  int port() const;
  /// Closes connections that have exceeded their time. Call it every second.
  void close_slow_connections();

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

} // namespace accelerate
