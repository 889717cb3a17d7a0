// SPDX-License-Identifier: Apache-2.0
#include "core/hardware/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/unique_file.h"

namespace accelerate {
namespace {

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  }
  return text;
}

/// A port at a numeric address.
struct Target {
  Target(const std::string& text, int port) {
    if (text.find(':') != std::string::npos) {
      auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
      v6->sin6_family = AF_INET6;
      v6->sin6_port = htons(static_cast<uint16_t>(port));
      size = sizeof(sockaddr_in6);
      inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr);
    } else {
      auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
      v4->sin_family = AF_INET;
      v4->sin_port = htons(static_cast<uint16_t>(port));
      size = sizeof(sockaddr_in);
      inet_pton(AF_INET, text.c_str(), &v4->sin_addr);
    }
  }
  int family() const { return address.ss_family; }
  const sockaddr* generic() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }

  sockaddr_storage address = {};
  socklen_t size = 0;
};

sockaddr_storage local_of(const UniqueFile& socket) {
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size);
  return local;
}

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList look_up(const std::string& host, int& error) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), nullptr, &wanted, &found);
  return {found, freeaddrinfo};
}

} // namespace

std::vector<NetworkInterface> list_interfaces() {
  std::vector<NetworkInterface> result;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return result;
  }
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) {
      continue;
    }
    const std::string address = text_of(entry->ifa_addr);
    if (!address.empty()) {
      result.push_back(
          {entry->ifa_name,
           address,
           (entry->ifa_flags & IFF_LOOPBACK) != 0,
           (entry->ifa_flags & IFF_UP) != 0});
    }
  }
  freeifaddrs(list);
  return result;
}

std::vector<std::string> resolve_host(const std::string& host) {
  int error = 0;
  const AddressList list = look_up(host, error);
  if (error != 0) {
    throw CommError(str_cat(
        "[launch] the name '",
        printable(host),
        "' has no address (",
        gai_strerror(error),
        "); correct it, or add it to DNS or /etc/hosts"));
  }
  std::vector<std::string> addresses;
  for (const auto* entry = list.get(); entry != nullptr;
       entry = entry->ai_next) {
    addresses.push_back(text_of(entry->ai_addr));
  }
  std::stable_partition(
      addresses.begin(), addresses.end(), [](const std::string& address) {
        return address.find(':') == std::string::npos;
      });
  return addresses;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("::ffff:127.") ||
         address == "::1";
}

bool is_loopback_name(const std::string& host) {
  for (const char* name :
       {"localhost",
        "localhost.localdomain",
        "ip6-localhost",
        "ip6-loopback"}) {
    if (host == name) {
      return true;
    }
  }
  return host.ends_with(".localhost");
}

bool is_this_machine(const std::string& host) {
  const auto own = list_interfaces();
  const auto addresses = resolve_host(host);
  return std::any_of(
      addresses.begin(), addresses.end(), [&](const std::string& address) {
        return is_loopback(address) ||
               std::any_of(own.begin(), own.end(), [&](const auto& entry) {
                 return entry.address == address;
               });
      });
}

std::string own_address_towards(const std::string& address) {
  const Target target(address, 9);
  // Connecting a datagram socket sends nothing; it only looks up the route.
  const UniqueFile probe(socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::string own;
  if (probe && connect(probe.get(), target.generic(), target.size) == 0) {
    const sockaddr_storage local = local_of(probe);
    own = text_of(reinterpret_cast<const sockaddr*>(&local));
  }
  return own;
}

bool is_refused_at(const std::string& address, int port) {
  constexpr int kLimitMs = 1000;
  const Target target(address, port);
  const UniqueFile probe(
      socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) {
    return false;
  }
  if (connect(probe.get(), target.generic(), target.size) != 0 &&
      errno != EINPROGRESS) {
    return errno == ECONNREFUSED;
  }
  pollfd answer = {probe.get(), POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof(error);
  if (poll(&answer, 1, kLimitMs) != 1 ||
      getsockopt(probe.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    return false;
  }
  // The kernel may assign the same port to the probe, which then connects to
  // itself.
  const sockaddr_storage local = local_of(probe);
  return error == ECONNREFUSED ||
         (error == 0 && std::memcmp(&local, &target.address, target.size) == 0);
}

std::string interface_towards(const std::string& address) {
  const std::string own = own_address_towards(address);
  for (const auto& entry : list_interfaces()) {
    if (entry.address == own) {
      return entry.name;
    }
  }
  return {};
}

} // namespace accelerate
