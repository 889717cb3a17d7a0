// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/error_report.h"

#include <algorithm>
#include <array>

#include "core/base/str.h"
#include "core/base/words.h"

namespace accelerate {
namespace {

constexpr std::array kBeginnings = {
    std::string_view("  + Exception Group Traceback (most recent call last):"),
    std::string_view("Traceback (most recent call last):"),
    std::string_view("terminate called "),
    std::string_view("Fatal Python error: ")};

constexpr std::array kLostPeer = {
    std::string_view("CommError"),
    std::string_view("nother rank exited"),
    std::string_view("Connection closed by peer"),
    std::string_view("Connection reset by peer"),
    std::string_view("ConnectionResetError"),
    std::string_view("BrokenPipeError"),
    std::string_view("Broken pipe"),
    std::string_view("remote process exited"),
    std::string_view("DistNetworkError"),
    std::string_view("DistStoreError"),
    std::string_view("NCCL communicator was aborted")};

bool contains(std::string_view text, std::string_view phrase) {
  return text.find(phrase) != text.npos;
}

bool is_frame(std::string_view line) {
  // The position of a syntax error is not a frame, because it has no function.
  return line.starts_with("  File \"") && contains(line, " in ");
}

bool is_native_frame(std::string_view line) {
  return line.starts_with("frame #");
}

/// Whether the line is a source line or a marker below a frame.
bool belongs_to_frame(std::string_view line) {
  return line.starts_with("    ") || line.starts_with("  [Previous line");
}

/// The package that a frame belongs to; empty if it is user code.
std::string package_of(std::string_view frame, const std::string& own_package) {
  if (is_native_frame(frame)) {
    return contains(frame, ".so") ? "C++ libraries" : "";
  }
  const size_t begin = frame.find('"') + 1;
  const std::string_view path =
      frame.substr(begin, frame.find('"', begin) - begin);
  if (!own_package.empty() && path.starts_with(own_package)) {
    return "accelerate";
  }
  for (const std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
    const size_t found = path.rfind(folder);
    if (found != path.npos) {
      const auto rest = path.substr(found + folder.size());
      const auto name = rest.substr(0, rest.find('/'));
      return std::string(
          name.ends_with(".py") ? name.substr(0, name.size() - 3) : name);
    }
  }
  const bool is_standard =
      path.starts_with("<frozen ") || contains(path, "/lib/python3");
  return is_standard ? "python" : "";
}

struct Run {
  int num_frames = 0;
  std::vector<std::string> packages = {};
};

void end_run(Run& run, std::vector<std::string>& folded) {
  if (run.num_frames > 0) {
    folded.push_back(str_cat(
        "  ... ",
        run.num_frames,
        run.num_frames == 1 ? " frame in " : " frames in ",
        join(run.packages, ", ")));
  }
  run = {};
}

} // namespace

size_t find_error_report(std::string_view text) {
  size_t first = text.npos;
  for (const auto beginning : kBeginnings) {
    const size_t found = text.find(beginning);
    first = std::min(first, found);
  }
  return first;
}

std::string_view without_rank(std::string_view line, int rank) {
  const std::string mark = str_cat("[rank", rank, "]:");
  if (line.starts_with(mark)) {
    line.remove_prefix(mark.size());
    line.remove_prefix(line.starts_with(' ') ? 1 : 0);
  }
  return line;
}

std::string final_error(const std::vector<std::string>& lines) {
  const auto last = std::find_if(lines.rbegin(), lines.rend(), [](auto& line) {
    return is_frame(line) || line.starts_with("terminate called ") ||
           line.starts_with("Fatal Python error: ");
  });
  if (last == lines.rend()) {
    return lines.empty() ? std::string() : lines.back();
  }
  if (!is_frame(*last)) {
    // The next line contains "  what():  " and the message.
    const auto what = last == lines.rbegin() ? lines.end() : last.base();
    return what != lines.end() && contains(*what, "what():")
               ? str_cat(
                     *last, ": ", trimmed(what->substr(what->find(':') + 1)))
               : *last;
  }
  const auto error = std::find_if(last.base(), lines.end(), [](auto& line) {
    return !line.empty() && line[0] != ' ';
  });
  return error == lines.end() ? std::string() : *error;
}

bool is_consequence(const std::vector<std::string>& lines) {
  const std::string error = final_error(lines);
  return std::any_of(kLostPeer.begin(), kLostPeer.end(), [&](auto phrase) {
    return contains(error, phrase);
  });
}

bool is_interrupt(const std::vector<std::string>& lines) {
  return final_error(lines).starts_with("KeyboardInterrupt");
}

std::vector<std::string> fold_library_frames(
    const std::vector<std::string>& lines,
    const std::string& own_package) {
  const auto is_users = [&](const std::string& line) {
    return (is_frame(line) || is_native_frame(line)) &&
           package_of(line, own_package).empty();
  };
  if (std::none_of(lines.begin(), lines.end(), is_users)) {
    return lines;
  }
  std::vector<std::string> folded;
  Run run;
  for (const std::string& line : lines) {
    const bool begins_frame = is_frame(line) || is_native_frame(line);
    const std::string package =
        begins_frame ? package_of(line, own_package) : std::string();
    if (!package.empty()) {
      ++run.num_frames;
      if (std::find(run.packages.begin(), run.packages.end(), package) ==
          run.packages.end()) {
        run.packages.push_back(package);
      }
    } else if (begins_frame || run.num_frames == 0 || !belongs_to_frame(line)) {
      end_run(run, folded);
      folded.push_back(line);
    }
  }
  end_run(run, folded);
  return folded;
}

} // namespace accelerate
