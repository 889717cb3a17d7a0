// SPDX-License-Identifier: Apache-2.0
// Names of signals. glibc provides them since version 2.32, but Red Hat 8 has
// 2.28.
#pragma once

#include <csignal>
#include <string>

namespace accelerate {

/// "SIGTERM", or "signal 40" for one without a name.
inline std::string signal_name(int signal) {
  constexpr struct {
    int signal;
    const char* name;
  } kRows[] = {
      {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},       {SIGQUIT, "SIGQUIT"},
      {SIGILL, "SIGILL"},       {SIGTRAP, "SIGTRAP"},     {SIGABRT, "SIGABRT"},
      {SIGBUS, "SIGBUS"},       {SIGFPE, "SIGFPE"},       {SIGKILL, "SIGKILL"},
      {SIGUSR1, "SIGUSR1"},     {SIGSEGV, "SIGSEGV"},     {SIGUSR2, "SIGUSR2"},
      {SIGPIPE, "SIGPIPE"},     {SIGALRM, "SIGALRM"},     {SIGTERM, "SIGTERM"},
      {SIGSTKFLT, "SIGSTKFLT"}, {SIGCHLD, "SIGCHLD"},     {SIGCONT, "SIGCONT"},
      {SIGSTOP, "SIGSTOP"},     {SIGTSTP, "SIGTSTP"},     {SIGTTIN, "SIGTTIN"},
      {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},       {SIGXCPU, "SIGXCPU"},
      {SIGXFSZ, "SIGXFSZ"},     {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"},
      {SIGWINCH, "SIGWINCH"},   {SIGPOLL, "SIGPOLL"},     {SIGPWR, "SIGPWR"},
      {SIGSYS, "SIGSYS"},
  };
  for (const auto& row : kRows) {
    if (row.signal == signal) {
      return row.name;
    }
  }
  return "signal " + std::to_string(signal);
}

} // namespace accelerate
