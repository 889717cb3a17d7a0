// SPDX-License-Identifier: Apache-2.0
// A run that is killed and resumed, for read_back.py:
//
//     track_run FOLDER first|again TRACKER...
//
// The first start logs steps 0 to 4 and dies; its state is that of a checkpoint
// after step
// 2. The second resumes from there up to step 5.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>

#include "accelerate/observe/tracking.h"

namespace {

/// One red pixel.
constexpr unsigned char kPng[] = {
    137, 80,  78,  71,  13,  10, 26, 10, 0,  0,   0,  13,  73,  72,
    68,  82,  0,   0,   0,   1,  0,  0,  0,  1,   8,  2,   0,   0,
    0,   144, 119, 83,  222, 0,  0,  0,  12, 73,  68, 65,  84,  120,
    156, 99,  248, 207, 192, 0,  0,  3,  1,  1,   0,  201, 254, 146,
    239, 0,   0,   0,   0,   73, 69, 78, 68, 174, 66, 96,  130};

void log_step(accelerate::Trackers& trackers, int step, bool is_again) {
  trackers.log(
      {{"loss", 1.0 / (step + 1)},
       {"lr", 1e-3F},
       {"seen", step * 8},
       {"again", is_again}});
}

void save(const accelerate::Trackers& trackers, const std::string& path) {
  std::ofstream file(path);
  const auto state = trackers.state();
  file << state.next_step << '\n';
  for (const auto& [name, text] : state.trackers) {
    file << name << ' ' << text << '\n';
  }
}

void load(accelerate::Trackers& trackers, const std::string& path) {
  std::ifstream file(path);
  accelerate::Trackers::State state;
  file >> state.next_step;
  file.ignore();
  for (std::string line; std::getline(file, line);) {
    const auto space = line.find(' ');
    state.trackers[line.substr(0, space)] = line.substr(space + 1);
  }
  trackers.load_state(state);
}

} // namespace

int main(int argc, char** argv) {
  const std::string folder = argv[1];
  const bool is_again = std::string(argv[2]) == "again";
  accelerate::TrackingOptions options = {
      .log_with = {},
      .logging_dir = folder,
      .configuration =
          {{"lr", 1e-3},
           {"layers", 4},
           {"name", "sky, \"blue\""},
           {"is_fast", true}},
  };
  for (int i = 3; i < argc; ++i) {
    options.log_with.emplace_back(argv[i]);
  }
  accelerate::Trackers trackers("sky", options, 2, is_again ? 1 : 0);
  if (is_again) {
    load(trackers, folder + "/state");
    for (int step = 3; step <= 5; ++step) {
      log_step(trackers, step, is_again);
    }
    trackers.finish();
    return 0;
  }
  for (int step = 0; step <= 4; ++step) {
    log_step(trackers, step, is_again);
    if (step == 2) {
      std::vector<double> numbers;
      for (int i = -50; i < 50; ++i) {
        numbers.push_back(i * 0.1);
      }
      trackers.log_histogram("weights", numbers);
      const std::string png(std::begin(kPng), std::end(kPng));
      trackers.log_images("pixel", {{.width = 1, .height = 1, .png = png}});
      trackers.log(
          {{"none", std::numeric_limits<double>::quiet_NaN()},
           {"note", "a\nline, \"quoted\""}},
          2);
      trackers.mark("checkpoint");
      save(trackers, folder + "/state");
    }
  }
  // Trackers must have sent everything before the process dies.
  trackers.get(options.log_with.front().name());
  save(trackers, folder + "/state_of_the_end");
  std::_Exit(0);
}
