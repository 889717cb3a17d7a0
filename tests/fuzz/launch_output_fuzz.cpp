// SPDX-License-Identifier: Apache-2.0
// The states of the output router and its consoles: workers write in pieces of
// any size, the reader reads at any speed, and at the end every line is
// complete and attributed to its rank.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>

#include "launcher/launch/supervise/output_router.h"
#include "require.h"

namespace accelerate {
namespace {

struct Pipe {
  explicit Pipe(int capacity) {
    int ends[2];
    require(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "pipes can be made");
    fcntl(ends[1], F_SETPIPE_SZ, capacity);
    reader = UniqueFile(ends[0]);
    writer = UniqueFile(ends[1]);
  }
  void take(size_t most) {
    std::string part(most, '\0');
    const auto size = read(reader.get(), part.data(), part.size());
    if (size > 0) {
      shown.append(part, 0, static_cast<size_t>(size));
    }
  }
  UniqueFile reader;
  UniqueFile writer;
  std::string shown;
};

struct Worker {
  ChildStreams streams;
  /// What it wrote, by stream.
  std::map<int, std::string> written;
};

void turn(EventLoop& loop) {
  loop.after(std::chrono::milliseconds(0), [&] { loop.stop(); });
  loop.run();
}

/// The lines of `text`, each with its newline; the last one gets one.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin) + "\n");
    begin = end + 1;
  }
  return lines;
}

void check(const std::string& shown, int rank, const std::string& written) {
  const std::string prefix =
      rank == 0 ? "" : "[rank " + std::to_string(rank) + "] ";
  size_t place = 0;
  for (const auto& line : lines_of(written)) {
    const std::string whole = prefix + line;
    place = shown.find(whole, place);
    // An empty line of rank 0 may match inside the output of others.
    require(place != std::string::npos, "every line is shown, in order");
    // Carriage returns after a newline leave the line empty.
    const size_t before = place == 0 ? std::string::npos
                                     : shown.find_last_not_of('\r', place - 1);
    require(
        line == "\n" || before == std::string::npos || shown[before] == '\n',
        "every line starts a line");
    place += whole.size();
  }
}

} // namespace
} // namespace accelerate

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accelerate;
  if (size < 2) {
    return 0;
  }
  const bool is_shared = (data[0] & 1) != 0;
  constexpr int kSmallPipe = 4096;
  Pipe out(kSmallPipe);
  Pipe err(kSmallPipe);
  EventLoop loop;
  OutputOptions options;
  options.is_prompt = (data[0] & 2) != 0;
  OutputRouter router(
      loop,
      options,
      out.writer.get(),
      is_shared ? out.writer.get() : err.writer.get());
  std::vector<Worker> workers(3);
  for (int rank = 0; rank < 3; ++rank) {
    workers[static_cast<size_t>(rank)].streams = router.open(rank, rank, "");
  }
  for (size_t i = 1; i + 1 < size; i += 2) {
    const uint8_t what = data[i];
    const size_t count = data[i + 1];
    Worker& worker = workers[what % 3];
    const int stream = (what & 16) != 0 ? STDERR_FILENO : STDOUT_FILENO;
    if ((what & 0xc0) == 0x40) {
      (count % 2 == 0 ? out : err).take(count * 64 + 1);
    } else if ((what & 0xc0) == 0x80) {
      turn(loop);
    } else {
      // Letters by rank and stream; long where the count is large.
      const char letter = static_cast<char>(
          'a' + 2 * (what % 3) + (stream == STDERR_FILENO ? 1 : 0));
      std::string text(count < 200 ? count : count * 50, letter);
      if ((what & 32) != 0) {
        text += '\n';
      }
      if (what % 3 == 0 && options.is_prompt && count % 7 == 0) {
        text += '\r';
      }
      const UniqueFile& file =
          stream == STDERR_FILENO ? worker.streams.err : worker.streams.out;
      fcntl(file.get(), F_SETFL, O_NONBLOCK);
      const auto written = write(file.get(), text.data(), text.size());
      if (written > 0) {
        worker.written[stream].append(text, 0, static_cast<size_t>(written));
      }
    }
  }
  for (auto& worker : workers) {
    worker.streams = {};
  }
  bool is_done = false;
  router.finish([&] { is_done = true; });
  for (int i = 0; i < 100000 && !is_done; ++i) {
    out.take(1 << 16);
    err.take(1 << 16);
    turn(loop);
  }
  require(is_done, "the output ends once it is read");
  out.take(1 << 20);
  err.take(1 << 20);
  for (int rank = options.is_prompt ? 1 : 0; rank < 3; ++rank) {
    auto& written = workers[static_cast<size_t>(rank)].written;
    check(out.shown, rank, written[STDOUT_FILENO]);
    check(is_shared ? out.shown : err.shown, rank, written[STDERR_FILENO]);
  }
  return 0;
}
