// SPDX-License-Identifier: Apache-2.0
// HTTP on loopback, by libmicrohttpd.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

struct PageRequest {
  std::string method = {};
  /// Unescaped.
  std::string path = {};
  /// One value of the query.
  std::function<std::optional<std::string>(const char* name)> argument = {};
  std::function<std::optional<std::string>(const char* name)> header = {};
};

struct PageAnswer {
  unsigned status = 200;
  const char* type = "text/plain; charset=utf-8";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// Answers one request after the other on a thread of its own, each on a
/// connection of its own. What is larger or slower than the limits below is
/// refused by closing it; of more connections, the oldest is closed.
class ACCELERATE_API PageServer {
 public:
  static constexpr size_t kMaxConnections = 64;
  static constexpr size_t kMaxHeaderBytes = 16 << 10;
  /// From accepting a connection to the last byte of its answer.
  static constexpr int kRequestSeconds = 5;

  using Answer = std::function<PageAnswer(const PageRequest&)>;
  /// Listens on 127.0.0.1; port 0 is a free one. Throws `SystemError` where the
  /// port is taken, `UsageError` where libmicrohttpd is missing.
  PageServer(int port, Answer answer);
  ~PageServer();

  int port() const;
  /// To be called every second: closes connections whose time is over.
  void close_slow_connections();

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

} // namespace accelerate
