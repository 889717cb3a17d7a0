// SPDX-License-Identifier: Apache-2.0
#include "core/observe/job_socket.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>

#include "accelerate/error.h"
#include "core/base/parse.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/observe/runtime_folder.h"

namespace accelerate {
namespace {

sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.string().size() >= sizeof(address.sun_path)) {
    throw SystemError(str_cat(
        "[job socket] the path ",
        printable(path.string()),
        " is too long for a socket; set ",
        variables::kRuntimeDir,
        " to a folder with a shorter path"));
  }
  std::strcpy(address.sun_path, path.c_str());
  return address;
}

UniqueFile make_socket() {
  return UniqueFile(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

bool is_of_this_user(int file) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == geteuid() || peer.uid == 0);
}

void limit_waiting(int file, std::chrono::seconds limit) {
  const timeval time{limit.count(), 0};
  setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
  setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
}

// Removes the sockets of killed processes.
void remove_dead_sockets(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder, ignored)) {
    const auto pid = parse_number<pid_t>(entry.path().stem().string());
    if (pid && *pid > 0 && kill(*pid, 0) != 0 && errno == ESRCH) {
      unlink(entry.path().c_str());
    }
  }
}

constexpr std::chrono::seconds kListenerPatience{1};
// Longer than `native_stack` takes to give up.
constexpr std::chrono::seconds kAskerPatience{8};

} // namespace

JobSocket::JobSocket()
    : path_(socket_of(runtime_folder(system_env), getpid())),
      owner_(getpid()),
      file_(make_socket()) {
  const auto address = address_of(path_);
  remove_dead_sockets(path_.parent_path());
  // The file may have been left by an earlier process with this PID.
  unlink(path_.c_str());
  if (!file_ ||
      bind(
          file_.get(),
          reinterpret_cast<const sockaddr*>(&address),
          sizeof(address)) != 0 ||
      chmod(path_.c_str(), 0600) != 0 || listen(file_.get(), 8) != 0) {
    throw SystemError(str_cat(
        "[job socket] cannot listen at ",
        printable(path_.string()),
        " (",
        std::strerror(errno),
        ")"));
  }
}

JobSocket::~JobSocket() {
  if (getpid() == owner_) {
    unlink(path_.c_str());
  }
}

void JobSocket::answer(
    const std::function<std::vector<RankReport>()>& look) const {
  const UniqueFile peer(accept4(file_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer || !is_of_this_user(peer.get())) {
    return;
  }
  limit_waiting(peer.get(), kListenerPatience);
  std::string text;
  for (const auto& report : look()) {
    text += encode(report) + '\n';
  }
  for (size_t sent = 0; sent < text.size();) {
    const auto size =
        send(peer.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) {
      return;
    }
    sent += static_cast<size_t>(size);
  }
}

std::optional<std::vector<RankReport>> ask_process(int pid) {
  // A job started by a scheduler may lack the variables of a login.
  const EnvLookup without = [](const std::string&) { return std::nullopt; };
  UniqueFile file;
  for (const EnvLookup& env : {EnvLookup(system_env), without}) {
    const auto address = address_of(socket_of(runtime_folder(env), pid));
    file = make_socket();
    limit_waiting(file.get(), kAskerPatience);
    if (connect(
            file.get(),
            reinterpret_cast<const sockaddr*>(&address),
            sizeof(address)) == 0) {
      break;
    }
    file.reset();
  }
  if (!file) {
    return std::nullopt;
  }
  std::string text;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = recv(file.get(), buffer, sizeof(buffer), 0)) > 0) {
    text.append(buffer, static_cast<size_t>(size));
  }
  if (size < 0) {
    const std::string why = why_silent(pid);
    throw TimeoutError(str_cat(
        "[doctor] process ",
        pid,
        " did not answer within ",
        kAskerPatience.count(),
        " s: ",
        why.empty() ? "it is busy" : why));
  }
  std::vector<RankReport> reports;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    reports.push_back(decode_report(line));
  }
  return reports;
}

} // namespace accelerate
