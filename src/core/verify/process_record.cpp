// SPDX-License-Identifier: Apache-2.0
#include "core/verify/process_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::verify {
namespace {

using Json = nlohmann::json;

// JSON has no NaN or infinity; a loss may be either.
Json of_number(double value) {
  if (std::isfinite(value)) {
    return value;
  }
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double to_number(const Json& json) {
  if (json.is_number()) {
    return json.get<double>();
  }
  const auto text = json.get<std::string>();
  return text == "inf"    ? std::numeric_limits<double>::infinity()
         : text == "-inf" ? -std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
}

Json of_tensors(const std::vector<TensorRecord>& tensors) {
  Json list = Json::array();
  for (const auto& tensor : tensors) {
    Json sums = Json::array();
    for (const double sum : tensor.sketch.sums) {
      sums.push_back(of_number(sum));
    }
    list.push_back(
        {{"name", tensor.name},
         {"num_elements", tensor.num_elements},
         {"num_dimensions", tensor.num_dimensions},
         {"is_divided", tensor.is_divided},
         {"is_trained", tensor.is_trained},
         {"epsilon", tensor.epsilon},
         {"squares", of_number(tensor.sketch.squares)},
         {"sums", std::move(sums)}});
  }
  return list;
}

std::vector<TensorRecord> to_tensors(const Json& list) {
  std::vector<TensorRecord> tensors;
  for (const auto& json : list) {
    TensorRecord tensor{
        .name = json.at("name"),
        .num_elements = json.at("num_elements"),
        .num_dimensions = json.at("num_dimensions"),
        .is_divided = json.at("is_divided"),
        .is_trained = json.at("is_trained"),
        .epsilon = json.at("epsilon")};
    tensor.sketch.squares = to_number(json.at("squares"));
    for (size_t i = 0; i < Sketch::kNumSums; ++i) {
      tensor.sketch.sums[i] = to_number(json.at("sums").at(i));
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Json of_batch(const MicroBatchRecord& batch) {
  Json leaves = Json::array();
  for (const auto& leaf : batch.leaves) {
    leaves.push_back(
        {{"num_elements", leaf.num_elements},
         {"sum", of_number(leaf.sum)},
         {"has_ignored", leaf.has_ignored},
         {"is_mask", leaf.is_mask},
         {"num_valid", leaf.num_valid},
         {"num_nonzero", leaf.num_nonzero}});
  }
  return {
      {"loss", of_number(batch.loss)},
      {"weight", of_number(batch.weight)},
      {"num_samples", batch.num_samples},
      {"leaves", std::move(leaves)}};
}

MicroBatchRecord to_batch(const Json& json) {
  MicroBatchRecord batch{
      .loss = to_number(json.at("loss")),
      .weight = to_number(json.at("weight")),
      .num_samples = json.at("num_samples")};
  for (const auto& leaf : json.at("leaves")) {
    batch.leaves.push_back(
        {.num_elements = leaf.at("num_elements"),
         .sum = to_number(leaf.at("sum")),
         .has_ignored = leaf.at("has_ignored"),
         .is_mask = leaf.at("is_mask"),
         .num_valid = leaf.at("num_valid"),
         .num_nonzero = leaf.at("num_nonzero")});
  }
  return batch;
}

UpdateRecord to_update(const Json& json) {
  UpdateRecord update{
      .optimizer = json.at("optimizer"),
      .gradients = to_tensors(json.at("gradients")),
      .parameters = to_tensors(json.at("parameters")),
      .buffers = to_tensors(json.at("buffers")),
      .changed_buffers = json.at("changed_buffers"),
      .peak_memory = json.at("peak_memory")};
  for (const auto& rate : json.at("learning_rates")) {
    update.learning_rates.push_back(to_number(rate));
  }
  for (const auto& batch : json.at("batches")) {
    update.batches.push_back(to_batch(batch));
  }
  return update;
}

void add_event(ProcessRecord& record, const Json& json) {
  const std::string event = json.at("event");
  if (event == "begin") {
    record.is_begun = true;
    record.rank = json.at("rank");
    record.num_ranks = json.at("num_ranks");
    record.num_data_ranks = json.at("num_data_ranks");
  } else if (event == "initial") {
    const auto tensors = to_tensors(json.at("tensors"));
    record.initial.insert(record.initial.end(), tensors.begin(), tensors.end());
  } else if (event == "update") {
    record.updates.push_back(to_update(json));
  } else if (event == "problem") {
    record.problems.push_back(json.at("text"));
  } else if (event == "obstacle") {
    record.obstacles.push_back(
        {.only_excuses = json.at("only_excuses"), .text = json.at("text")});
  } else if (event == "output") {
    record.outputs.push_back(to_tensors(json.at("tensors")).at(0));
  } else if (event == "order") {
    record.orders.push_back(json.at("hash"));
  }
}

} // namespace

Sketch& Sketch::operator+=(const Sketch& other) {
  squares += other.squares;
  for (size_t i = 0; i < kNumSums; ++i) {
    sums[i] += other.sums[i];
  }
  return *this;
}

double distance(const Sketch& a, const Sketch& b) {
  double squares = 0;
  for (size_t i = 0; i < Sketch::kNumSums; ++i) {
    const double difference = a.sums[i] - b.sums[i];
    squares += difference * difference;
  }
  return std::sqrt(squares / Sketch::kNumSums);
}

RecordWriter::RecordWriter(const std::filesystem::path& file)
    : path_(file),
      file_(
          open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {
  if (file_ < 0) {
    throw SystemError(str_cat(
        "[verify] Cannot write ",
        path_.string(),
        " (",
        std::strerror(errno),
        "). Set TMPDIR to a folder that you may write to"));
  }
}

RecordWriter::~RecordWriter() {
  close(file_);
}

void RecordWriter::write(const std::string& line) {
  const std::string text = line + '\n';
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count =
        ::write(file_, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) {
      throw SystemError(str_cat(
          "[verify] Cannot write ",
          path_.string(),
          " (",
          std::strerror(errno),
          "). Free space there, or set TMPDIR"));
    }
    done += count > 0 ? static_cast<size_t>(count) : 0;
  }
}

void RecordWriter::begin(int rank, int num_ranks, int num_data_ranks) {
  write(Json({{"event", "begin"},
              {"rank", rank},
              {"num_ranks", num_ranks},
              {"num_data_ranks", num_data_ranks}})
            .dump());
}

void RecordWriter::add_initial(const std::vector<TensorRecord>& tensors) {
  write(Json({{"event", "initial"}, {"tensors", of_tensors(tensors)}}).dump());
}

void RecordWriter::add_update(const UpdateRecord& update) {
  Json rates = Json::array();
  for (const double rate : update.learning_rates) {
    rates.push_back(of_number(rate));
  }
  Json batches = Json::array();
  for (const auto& batch : update.batches) {
    batches.push_back(of_batch(batch));
  }
  write(Json({{"event", "update"},
              {"optimizer", update.optimizer},
              {"learning_rates", std::move(rates)},
              {"batches", std::move(batches)},
              {"gradients", of_tensors(update.gradients)},
              {"parameters", of_tensors(update.parameters)},
              {"buffers", of_tensors(update.buffers)},
              {"changed_buffers", update.changed_buffers},
              {"peak_memory", update.peak_memory}})
            .dump());
}

void RecordWriter::add_problem(const std::string& text) {
  if (std::find(known_.begin(), known_.end(), text) == known_.end()) {
    known_.push_back(text);
    // Messages may quote names in any encoding.
    write(Json({{"event", "problem"}, {"text", text}})
              .dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

void RecordWriter::add_obstacle(const Obstacle& obstacle) {
  if (std::find(known_.begin(), known_.end(), obstacle.text) == known_.end()) {
    known_.push_back(obstacle.text);
    write(Json({{"event", "obstacle"},
                {"only_excuses", obstacle.only_excuses},
                {"text", obstacle.text}})
              .dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

void RecordWriter::add_order(const std::string& hash) {
  write(Json({{"event", "order"}, {"hash", hash}}).dump());
}

void RecordWriter::add_output(const TensorRecord& output) {
  write(Json({{"event", "output"}, {"tensors", of_tensors({output})}}).dump());
}

ProcessRecord read_process_record(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) {
    throw SystemError(str_cat(
        "[verify] Cannot read ",
        file.string(),
        ". Run `accelerate verify` again"));
  }
  ProcessRecord record;
  std::string line;
  try {
    while (std::getline(in, line)) {
      if (in.eof()) {
        break; // A process that was killed leaves an incomplete last line.
      }
      add_event(record, Json::parse(line));
    }
  } catch (const Json::exception& error) {
    throw DataError(str_cat(
        "[verify] ",
        file.string(),
        " is damaged (",
        error.what(),
        "). Run `accelerate verify` again"));
  }
  return record;
}

std::filesystem::path record_file(
    const std::filesystem::path& folder,
    int rank) {
  return folder / str_cat("rank_", rank, ".jsonl");
}

} // namespace accelerate::verify
