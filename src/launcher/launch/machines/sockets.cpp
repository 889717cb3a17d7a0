// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/hardware/network.h"
#include "core/hardware/ports.h"

namespace accelerate {
namespace {

struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;
  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&address); }
};

Endpoint endpoint_of(const std::string& address, int port) {
  Endpoint endpoint;
  const auto network_port = htons(static_cast<uint16_t>(port));
  if (address.find(':') != std::string::npos) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&endpoint.address);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = network_port;
    inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr);
    endpoint.size = sizeof(sockaddr_in6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&endpoint.address);
    v4->sin_family = AF_INET;
    v4->sin_port = network_port;
    inet_pton(AF_INET, address.c_str(), &v4->sin_addr);
    endpoint.size = sizeof(sockaddr_in);
  }
  return endpoint;
}

[[noreturn]] void refuse_address(const std::string& host, int port, int cause) {
  if (cause == EADDRINUSE || cause == EACCES) {
    throw ConfigError(str_cat(
        "[launch] port ",
        port,
        " of this machine ",
        port_problem(port, cause),
        "; ",
        cause == EADDRINUSE ? "stop it, or pass" : "pass",
        " another --main_process_port on every machine"));
  }
  throw ConfigError(str_cat(
      "[launch] machine 0 cannot listen on ",
      host,
      " port ",
      port,
      " (",
      std::strerror(cause),
      "); set --main_process_ip to an address of machine 0 that the other "
      "machines can reach"));
}

} // namespace

UniqueFile listen_on(const std::string& host, int port) {
  const std::string address = host.empty() ? "0.0.0.0" : resolve_host(host)[0];
  Endpoint endpoint = endpoint_of(address, port);
  UniqueFile listener(
      socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (!listener ||
      bind(listener.get(), endpoint.generic(), endpoint.size) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    refuse_address(host, port, errno);
  }
  return listener;
}

UniqueFile begin_connect(const std::string& host, int port) {
  Endpoint endpoint = endpoint_of(resolve_host(host)[0], port);
  UniqueFile file(socket(
      endpoint.address.ss_family,
      SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
      0));
  // The outcome, including failure, is queried once the socket is writable.
  connect(file.get(), endpoint.generic(), endpoint.size);
  return file;
}

int connect_error(int socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    return errno;
  }
  sockaddr_storage peer{};
  size = sizeof(peer);
  if (error == 0 &&
      getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
    return errno;
  }
  return error;
}

std::string peer_address(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  char text[INET6_ADDRSTRLEN] = "somebody";
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0) {
    const void* address =
        peer.ss_family == AF_INET6
            ? static_cast<const void*>(
                  &reinterpret_cast<sockaddr_in6*>(&peer)->sin6_addr)
            : &reinterpret_cast<sockaddr_in*>(&peer)->sin_addr;
    inet_ntop(peer.ss_family, address, text, sizeof(text));
  }
  return text;
}

} // namespace accelerate
