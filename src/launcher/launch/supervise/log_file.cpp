// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/log_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "launcher/launch/supervise/own_folder.h"

namespace accelerate {
namespace {

constexpr int kFilesKept = 5;

} // namespace

LogFile::LogFile(std::filesystem::path file, int64_t most_bytes, Say say)
    : path_(std::move(file)), most_bytes_(most_bytes), say_(std::move(say)) {
  open(open_own_folder(path_.parent_path()));
  if (!file_) {
    throw SystemError(str_cat(
        "[launch] cannot write ",
        path_.string(),
        " (",
        std::strerror(errno),
        "); ",
        hint_for_logs(errno)));
  }
}

void LogFile::open(const UniqueFile& folder) {
  file_ = UniqueFile(openat(
      folder.get(),
      path_.filename().c_str(),
      O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW,
      0644));
  size_ = 0;
}

void LogFile::write(std::string_view text) {
  if (most_bytes_ == 0 ||
      size_ + static_cast<int64_t>(text.size()) < most_bytes_) {
    append(text);
    return;
  }
  while (!text.empty()) {
    // The file may exceed the limit by the rest of a line.
    const auto space =
        most_bytes_ > size_ ? static_cast<size_t>(most_bytes_ - size_) : 0;
    const size_t line_end =
        space < text.size() ? text.find('\n', space) : std::string_view::npos;
    const size_t end =
        line_end == std::string_view::npos ? text.size() : line_end + 1;
    append(text.substr(0, end));
    text.remove_prefix(end);
    if (size_ >= most_bytes_ && is_at_line_start_) {
      rotate();
    }
  }
}

void LogFile::rotate() {
  const std::string name = path_.filename();
  try {
    const UniqueFile folder = open_own_folder(path_.parent_path());
    const auto move = [&](const std::string& from, int number) {
      const std::string to = str_cat(name, '.', number);
      renameat(folder.get(), from.c_str(), folder.get(), to.c_str());
    };
    for (int number = kFilesKept - 2; number > 0; --number) {
      move(str_cat(name, '.', number), number + 1);
    }
    move(name, 1);
    open(folder);
  } catch (const SystemError& error) {
    // Continue with the same file. Nothing is lost.
    size_ = 0;
    say_(error.what());
  }
}

void LogFile::replace_deleted() {
  struct stat found {};
  if (fstat(file_.get(), &found) != 0 || found.st_nlink > 0) {
    return;
  }
  try {
    const UniqueFile folder = open_own_folder(path_.parent_path());
    UniqueFile old = std::move(file_);
    open(folder);
    if (file_) {
      say_(str_cat(
          "[launch] ", path_.string(), " was deleted; writing a new file"));
      return;
    }
    file_ = std::move(old);
  } catch (const SystemError&) {
    // The message below reports the error.
  }
  if (!std::exchange(is_loss_said_, true)) {
    say_(str_cat(
        "[launch] ",
        path_.string(),
        " was deleted and cannot be created again, so further output for this "
        "file is lost"));
  }
}

void LogFile::append(std::string_view text) {
  replace_deleted();
  if (num_lost_here_ > 0) {
    const std::string gap = str_cat(
        is_at_line_start_ ? "" : "\n",
        "[launch] ",
        num_lost_here_,
        " bytes are missing here, because the disk was full\n");
    const auto written = ::write(file_.get(), gap.data(), gap.size());
    if (written != static_cast<ssize_t>(gap.size())) {
      num_lost_here_ += static_cast<int64_t>(text.size());
      num_lost_ += static_cast<int64_t>(text.size());
      return;
    }
    size_ += written;
    num_lost_here_ = 0;
  }
  while (!text.empty()) {
    const auto written = ::write(file_.get(), text.data(), text.size());
    if (written > 0) {
      size_ += written;
      is_at_line_start_ = text[static_cast<size_t>(written) - 1] == '\n';
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      if (num_lost_ == 0) {
        say_(str_cat(
            "[launch] cannot write ",
            path_.string(),
            " (",
            std::strerror(errno),
            "), so output is lost until there is space again; ",
            errno == EFBIG ? "raise the limit on file sizes (ulimit -f)"
                           : "free some space"));
      }
      num_lost_here_ = static_cast<int64_t>(text.size());
      num_lost_ += num_lost_here_;
      return;
    }
  }
}

} // namespace accelerate
