// SPDX-License-Identifier: Apache-2.0
#include "support/rank_bodies.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "support/run_tests.h"

namespace accelerate::testing {
namespace {

constexpr const char* kBodyVariable = "ACCELERATE_TEST_BODY";
constexpr const char* kFolderVariable = "ACCELERATE_TEST_FOLDER";

std::map<std::string, RankBody>& bodies() {
  static std::map<std::string, RankBody> registered;
  return registered;
}

std::string own_path() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

ProcessResult launch(
    int num_ranks,
    const std::string& name,
    const std::filesystem::path& folder,
    Variables variables) {
  variables[kBodyVariable] = name;
  variables[kFolderVariable] = folder.string();
  variables["OMP_NUM_THREADS"] = "1";
  return run_process(
      {std::string(TEST_BIN_DIR) + "/accelerate",
       "launch",
       "--num_processes",
       std::to_string(num_ranks),
       own_path()},
      std::move(variables),
      std::chrono::seconds(120));
}

int run_as_worker(const std::string& name) {
  try {
    const std::string text = bodies().at(name)({});
    const auto file =
        *folder_of_ranks() / std::to_string(detect_topology().rank);
    std::ofstream(file, std::ios::binary) << text;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

} // namespace

RankBodyRegistration::RankBodyRegistration(
    const std::string& name,
    RankBody body) {
  bodies()[name] = std::move(body);
}

std::ostream& operator<<(std::ostream& out, RankKind kind) {
  return out << (kind == RankKind::kThreads ? "Threads" : "Processes");
}

std::vector<std::string> run_body(
    RankKind kind,
    int num_ranks,
    const std::string& name,
    const Variables& variables) {
  std::vector<std::string> texts(static_cast<size_t>(num_ranks));
  if (kind == RankKind::kThreads) {
    run_ranks(num_ranks, [&](ProcessGroup group) {
      texts[static_cast<size_t>(group.rank())] =
          bodies().at(name)({.process_group = group});
    });
    return texts;
  }
  const TempDir folder;
  const auto result = launch(num_ranks, name, folder.path(), variables);
  if (result.exit_code != 0) {
    throw std::runtime_error(result.err);
  }
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank] = read_file(folder.path() / std::to_string(rank));
  }
  return texts;
}

ProcessResult launch_body(
    int num_ranks,
    const std::string& name,
    const Variables& variables) {
  const TempDir folder;
  return launch(num_ranks, name, folder.path(), variables);
}

std::optional<std::filesystem::path> folder_of_ranks() {
  const char* folder = std::getenv(kFolderVariable);
  return folder != nullptr ? std::optional<std::filesystem::path>(folder)
                           : std::nullopt;
}

std::string to_text(const at::Tensor& tensor) {
  std::ostringstream out;
  out << std::hexfloat;
  const auto flat = tensor.detach().cpu().to(at::kDouble).flatten();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    out << flat[i].item<double>() << ' ';
  }
  return out.str();
}

at::Tensor from_text(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> values;
  for (std::string word; in >> word;) {
    values.push_back(std::strtod(word.c_str(), nullptr));
  }
  return torch::tensor(values, at::kDouble);
}

} // namespace accelerate::testing

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (const char* body = std::getenv("ACCELERATE_TEST_BODY")) {
    return accelerate::testing::run_as_worker(body);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return accelerate::testing::run_tests();
}
