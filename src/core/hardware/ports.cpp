// SPDX-License-Identifier: Apache-2.0
#include "core/hardware/ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

// The bound port; empty, with errno set, on failure.
int bind_port(const std::string& address, int port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in endpoint{};
  endpoint.sin_family = AF_INET;
  endpoint.sin_port = htons(static_cast<uint16_t>(port));
  endpoint.sin_addr.s_addr = htonl(INADDR_ANY);
  if (!address.empty()) {
    inet_pton(AF_INET, address.c_str(), &endpoint.sin_addr);
  }
  socklen_t size = sizeof(endpoint);
  auto* generic = reinterpret_cast<sockaddr*>(&endpoint);
  const bool is_bound = listener >= 0 && bind(listener, generic, size) == 0 &&
                        listen(listener, 1) == 0 &&
                        getsockname(listener, generic, &size) == 0;
  const int cause = errno;
  if (listener >= 0) {
    close(listener);
  }
  errno = cause;
  return is_bound ? ntohs(endpoint.sin_port) : -1;
}

// Columns of /proc/net/tcp: number, local address, remote address, state, two
// pairs, retransmissions, user, timeout, inode.
std::set<std::string> listening_inodes(int port) {
  constexpr const char* kListening = "0A";
  std::set<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream in(line);
      std::string skip;
      std::string local;
      std::string state;
      std::string inode;
      in >> skip >> local >> skip >> state;
      for (int i = 0; i < 6; ++i) {
        in >> inode;
      }
      const size_t colon = local.find(':');
      if (state == kListening && colon != std::string::npos &&
          std::stoi(local.substr(colon + 1), nullptr, 16) == port) {
        inodes.insert("socket:[" + inode + "]");
      }
    }
  }
  return inodes;
}

bool holds_one_of(const fs::path& process, const std::set<std::string>& files) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(process / "fd", error)) {
    const auto target = fs::read_symlink(entry.path(), error);
    if (!error && files.contains(target.string())) {
      return true;
    }
  }
  return false;
}

// The start of the kernel's ephemeral port range.
int first_ephemeral_port() {
  int first = 32768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return first;
}

// Workers take seconds until they listen. A port in the ephemeral range could
// be taken by then.
int bind_lasting_port(const std::string& address) {
  constexpr int kLowest = 20000;
  constexpr int kAttempts = 64;
  const int end = first_ephemeral_port();
  if (end <= kLowest) {
    return -1;
  }
  std::random_device random;
  std::uniform_int_distribution<int> choose(kLowest, end - 1);
  int port = -1;
  for (int i = 0; port < 0 && i < kAttempts; ++i) {
    port = bind_port(address, choose(random));
  }
  return port;
}

/// "pid 4711 (python3)"; "another program" if it cannot be inspected.
std::string port_owner(int port) {
  const auto inodes = listening_inodes(port);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos &&
        holds_one_of(entry.path(), inodes)) {
      std::string program;
      std::getline(std::ifstream(entry.path() / "comm"), program);
      return str_cat("pid ", name, " (", printable(program), ")");
    }
  }
  return "another program";
}

} // namespace

int find_free_port(const std::string& address) {
  int port = bind_lasting_port(address);
  if (port < 0) {
    port = bind_port(address, 0);
  }
  if (port < 0) {
    const int cause = errno;
    throw SystemError(str_cat(
        "[launch] no free TCP port on ",
        address.empty() ? "this machine" : address,
        " (",
        std::strerror(cause),
        "); ",
        cause == EMFILE || cause == ENFILE
            ? "raise the limit on open files (ulimit -n)"
            : "check that the network interface is up"));
  }
  return port;
}

std::string port_problem(int port) {
  return bind_port("", port) >= 0 ? std::string() : port_problem(port, errno);
}

std::string port_problem(int port, int cause) {
  if (cause == EADDRINUSE) {
    return "is taken by " + port_owner(port);
  }
  if (cause == EACCES) {
    return "is not allowed for this user (Permission denied)";
  }
  return str_cat("cannot be opened (", std::strerror(cause), ")");
}
} // namespace accelerate
