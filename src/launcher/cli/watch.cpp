// SPDX-License-Identifier: Apache-2.0
// `accelerate watch`: shows runs in the browser.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/unique_file.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"
#include "launcher/watch/watch_page.h"

namespace accelerate {
namespace {

struct WatchOptions {
  std::vector<std::filesystem::path> folders = {};
  int port = 0;
  bool opens_browser = false;
};

/// A file that redirects a browser to the page: the token must not appear on a
/// command line, which every user can read.
class BrowserFile {
 public:
  explicit BrowserFile(const std::string& address) {
    const UniqueFile file(mkostemps(path_.data(), 5, O_CLOEXEC));
    const std::string text =
        "<meta http-equiv=\"refresh\" content=\"0; url=" + address + "\">\n";
    if (!file || write(file.get(), text.data(), text.size()) < 0) {
      return;
    }
    const pid_t child = fork();
    if (child == 0) {
      execlp("xdg-open", "xdg-open", path_.c_str(), nullptr);
      _exit(127);
    }
  }
  ~BrowserFile() { unlink(path_.c_str()); }
  BrowserFile(const BrowserFile&) = delete;
  BrowserFile& operator=(const BrowserFile&) = delete;

 private:
  std::string path_ = "/tmp/accelerate-watch-XXXXXX.html";
};

/// Serves the page until a signal ends it. Returns the exit code.
int watch(const WatchOptions& options) {
  RunList runs(options.folders);
  const std::string token = make_token();
  WatchPage page(runs, token);
  // Block the signals before any thread exists that could receive them. SIGPIPE
  // is included, because a browser may disconnect during an answer.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  sigdelset(&signals, SIGPIPE);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&signals, signal);
  }
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  PageServer server(options.port, [&page](const PageRequest& request) {
    return page.answer(request);
  });
  const std::string address =
      str_cat("http://127.0.0.1:", server.port(), "/?token=", token);
  for (const auto& folder : runs.empty()) {
    const auto name = printable(folder.string());
    std::cout << "[watch] No runs in '" << name
              << "' yet. Waiting for one. Add to your program:\n"
                 "  Python: accelerator = Accelerator(log_with=\"jsonl\", "
                 "project_dir=\""
              << name
              << "\"); accelerator.init_trackers(\"first\")\n"
                 "  C++:    accelerator.init_trackers(\"first\", {.log_with = "
                 "{\"jsonl\"}, .logging_dir = \""
              << name << "\"});\n";
  }
  const auto num_runs = runs.size();
  std::cout
      << "[watch] " << num_runs << (num_runs == 1 ? " run" : " runs") << ": "
      << address
      << "\n[watch] reachable from this machine only; press Ctrl-C to stop"
      << std::endl;
  std::optional<BrowserFile> browser;
  if (options.opens_browser) {
    browser.emplace(address);
  }
  while (std::cout) {
    const timespec second = {.tv_sec = 1, .tv_nsec = 0};
    const int signal = sigtimedwait(&signals, nullptr, &second);
    if (signal > 0) {
      return 128 + signal;
    }
    server.close_slow_connections();
  }
  return kExitFailure;
}

} // namespace

void add_watch_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "watch", "Show running and finished runs in the browser");
  command->group(kInspectCommands);
  const auto options = std::make_shared<WatchOptions>();
  command
      ->add_option(
          "folder",
          options->folders,
          "Folder of one run (logging_dir/PROJECT) or of several runs. Pass "
          "several folders to compare their runs")
      ->required();
  command
      ->add_option(
          "--port", options->port, "Port on 127.0.0.1; 0 picks a free one")
      ->type_name("PORT")
      ->check(whole_number_from(0, 65535))
      ->capture_default_str();
  constexpr const char* kHidden = "";
  command->add_flag("--open", options->opens_browser)->group(kHidden);
  command->footer(
      "The run must log with the tracker 'jsonl'. The page can only be "
      "reached\nfrom this machine; to open it on another machine, forward the "
      "port:\n"
      "  ssh -L PORT:127.0.0.1:PORT HOST");
  command->callback([options, &exit_code] { exit_code = watch(*options); });
}

} // namespace accelerate
