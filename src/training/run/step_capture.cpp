// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <iostream>
#include <list>

#include "accelerate/error.h"
#include "accelerate/training/capture.h"
#include "core/base/str.h"
#include "core/observe/rank_record.h"
#include "training/device/device_graph.h"
#include "training/device/streams.h"
#include "training/run/recorded_steps.h"
#include "training/run/training_run.h"

namespace accelerate::detail {
namespace {

std::string describe_inputs(
    const std::vector<at::Tensor>& inputs,
    const std::string& structure) {
  std::string text = structure;
  for (const auto& input : inputs) {
    text +=
        input.defined()
            ? str_cat(' ', c10::toString(input.scalar_type()), input.sizes())
            : " none";
  }
  return text;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

} // namespace

struct StepCapture::State {
  /// Recorded work, and the tensors that it reads and writes.
  struct Graph {
    std::string key;
    int num_calls = 0;
    std::unique_ptr<DeviceGraph> graph;
    std::vector<at::Tensor> inputs;
    Outcome outcome;
    /// The host-side effects of the recorded step.
    StepRecording recording;
  };

  State(RecordedSteps& run, CaptureOptions options, bool looks_first)
      : run(run),
        options(options),
        looks_first(looks_first),
        refusal(run.why_not_to_capture()) {
    if (refusal.empty()) {
      memory = make_graph_memory(run.device());
    } else {
      announce();
    }
  }

  void refuse(const std::string& why) {
    refusal = why;
    graphs.clear();
    announce();
  }
  void announce() const {
    std::cerr << str_cat("[capture] The step is not recorded: ", refusal, '\n');
  }

  /// Moves the graph for these inputs to the front. Creates an empty one if it
  /// does not exist.
  Graph& find(const std::string& key) {
    for (auto it = graphs.begin(); it != graphs.end(); ++it) {
      if (it->key == key) {
        graphs.splice(graphs.begin(), graphs, it);
        return graphs.front();
      }
    }
    if (graphs.size() >= std::max<size_t>(1, options.max_graphs)) {
      graphs.pop_back();
    }
    graphs.emplace_front().key = key;
    return graphs.front();
  }

  /// Runs `body` eagerly. Only the last warm-up checks whether it can be
  /// recorded, because one-time work, e.g. moving a table to the device, may
  /// wait for the device.
  Outcome warm_up(
      const std::vector<at::Tensor>& inputs,
      const Body& body,
      bool is_last) {
    if (!looks_first || !is_last) {
      return body(inputs);
    }
    const WaitDetector watch(run.device());
    auto outcome = body(inputs);
    if (watch.has_waited()) {
      refuse(
          "it waits for the device (item(), a copy to the CPU, or a shape that "
          "depends on values). Move that code out of the captured function");
    }
    return outcome;
  }

  void record(
      Graph& entry,
      const std::vector<at::Tensor>& inputs,
      const Body& body) {
    for (const auto& input : inputs) {
      entry.inputs.push_back(input.defined() ? input.detach().clone() : input);
    }
    // Clear casts of weights that an outer autocast has cached, because the
    // graph would keep their current values.
    at::autocast::clear_cache();
    const PhaseScope scope(StepPhase::kCaptured);
    entry.recording = run.record([&] {
      entry.graph = record_graph(run.device(), memory, [&] {
        entry.outcome = body(entry.inputs);
        run.end_recorded_step();
      });
    });
    at::autocast::clear_cache();
  }

  static void fill(const Graph& entry, const std::vector<at::Tensor>& inputs) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined()) {
        entry.inputs[i].copy_(inputs[i], /*non_blocking=*/true);
      }
    }
  }

  Outcome replay(Graph& entry) {
    const PhaseScope scope(StepPhase::kCaptured);
    RankRecord::of_this_thread().note_update();
    run.begin_replay(entry.recording);
    run.write_learning_rates();
    entry.graph->replay();
    run.end_replay(entry.recording);
    ++num_replays;
    Outcome outcome{{}, entry.outcome.value};
    for (const auto& tensor : entry.outcome.tensors) {
      outcome.tensors.push_back(tensor.defined() ? tensor.clone() : tensor);
    }
    return outcome;
  }

  RecordedSteps& run;
  CaptureOptions options;
  bool looks_first;
  /// Whether engines have prepared for calls on the recording stream, including
  /// calls that are rejected later.
  bool is_prepared = false;
  std::string refusal;
  std::shared_ptr<GraphMemory> memory;
  std::list<Graph> graphs;
  /// `RecordedSteps::address_hash` when the graphs were recorded.
  size_t addresses = 0;
  size_t num_replays = 0;
};

StepCapture::StepCapture(
    TrainingRun& run,
    CaptureOptions options,
    bool looks_first)
    : state_(
          std::make_unique<State>(run.recorded_steps(), options, looks_first)) {
}
StepCapture::~StepCapture() = default;

StepCapture::Outcome StepCapture::call(
    const std::vector<at::Tensor>& inputs,
    const std::string& structure,
    const Body& body) {
  auto& state = *state_;
  if (state.refusal.empty()) {
    const auto why = state.run.why_not_to_capture(inputs);
    if (!why.empty()) {
      state.refuse(why);
    }
  }
  if (state.refusal.empty()) {
    state.is_prepared = true;
  }
  const auto stream =
      state.is_prepared ? state.run.enter_captured_step() : nullptr;
  if (!state.refusal.empty()) {
    return body(inputs);
  }
  const size_t addresses = state.run.address_hash();
  if (addresses != std::exchange(state.addresses, addresses)) {
    state.graphs.clear();
  }
  auto& entry = state.find(
      str_cat(describe_inputs(inputs, structure), state.run.capture_key()));
  if (!entry.graph && entry.num_calls++ < state.options.num_warmup) {
    // Laying out buckets also waits for the device.
    return state.warm_up(
        inputs,
        body,
        entry.num_calls == state.options.num_warmup &&
            state.run.is_recordable());
  }
  if (!state.run.is_recordable()) {
    return body(inputs);
  }
  if (entry.graph) {
    State::fill(entry, inputs);
    state.run.repeat(entry.recording);
    return state.replay(entry);
  }
  try {
    state.record(entry, inputs, body);
  } catch (const std::exception& error) {
    state.refuse(first_line(error.what()));
    return body(inputs);
  }
  return state.replay(entry);
}

size_t StepCapture::num_graphs() const {
  return static_cast<size_t>(std::count_if(
      state_->graphs.begin(), state_->graphs.end(), [](const auto& entry) {
        return entry.graph != nullptr;
      }));
}
size_t StepCapture::num_replays() const {
  return state_->num_replays;
}
const std::string& StepCapture::refusal() const {
  return state_->refusal;
}

} // namespace accelerate::detail
