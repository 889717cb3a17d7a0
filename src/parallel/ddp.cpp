// SPDX-License-Identifier: Apache-2.0
// Distributed data parallelism on c10d's Reducer: buckets of gradients are
// averaged while backward still runs.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "accelerate/c10d.h"
#include "accelerate/error.h"
#include "base/str.h"
#include "comm/agreement.h"
#include "parallel/engine.h"

namespace accelerate {
namespace {

constexpr int64_t kMiB = 1024 * 1024;
constexpr size_t kBroadcastBytes = 250 * kMiB;

/// The identity, whose backward calls `on_backward` of its owner.
struct BackwardNotifier {
  virtual void on_backward() = 0;

 protected:
  ~BackwardNotifier() = default;
};
struct NotifyingIdentity : torch::autograd::Function<NotifyingIdentity> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& output,
      int64_t notifier) {
    context->saved_data["notifier"] = notifier;
    return output.view_as(output);
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::tensor_list gradients) {
    reinterpret_cast<BackwardNotifier*>(context->saved_data["notifier"].toInt())
        ->on_backward();
    return {gradients[0], {}};
  }
};

std::string describe(const ParameterSet& model) {
  std::string text;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const auto& parameter = model.parameters[i];
    text += str_cat(
        model.names[i],
        ' ',
        c10::toString(parameter.scalar_type()),
        parameter.sizes(),
        parameter.requires_grad() ? "" : " frozen",
        "; ");
  }
  return text + str_cat(model.buffers.size(), " buffers");
}

class DdpEngine final : public ParallelEngine, private BackwardNotifier {
 public:
  DdpEngine(
      const ProcessGroup& group,
      const ParameterSet& model,
      const DdpOptions& options)
      : group_(group), options_(options), buffers_(model.buffers) {
    share_initial_values(model);
    make_reducer(model);
  }

  void before_forward() override {
    if (at::GradMode::is_enabled() && sync_) {
      reducer_->prepare_for_forward();
      // Buckets are laid out anew once, in the order gradients arrived in.
      reducer_->rebuild_buckets();
    }
    if (options_.broadcast_buffers && sync_ && !buffers_.empty()) {
      share("broadcast of buffers", buffers_);
    }
  }

  bool wants_outputs() const override {
    return at::GradMode::is_enabled() && sync_ &&
           (options_.find_unused_parameters ||
            (options_.static_graph && !has_seen_graph_));
  }

  void after_forward(std::span<at::Tensor* const> outputs) override {
    if (!at::GradMode::is_enabled() || !sync_) {
      return;
    }
    std::vector<at::Tensor> roots;
    if (options_.find_unused_parameters && !options_.static_graph) {
      for (const auto* output : outputs) {
        roots.push_back(*output);
      }
    }
    reducer_->prepare_for_backward(roots);
    if (options_.static_graph && !has_seen_graph_) {
      has_seen_graph_ = true;
      watch_first_pass(outputs);
    }
  }

  void set_sync(bool sync) override { sync_ = sync; }
  bool sync() const override { return sync_; }
  void sync_next_backward() override {
    reducer_->prepare_for_forward();
    reducer_->prepare_for_backward({});
  }

 private:
  void share_initial_values(const ParameterSet& model) {
    std::vector<at::Tensor> everything;
    for (const auto& parameter : model.parameters) {
      everything.push_back(parameter.detach());
    }
    everything.insert(everything.end(), buffers_.begin(), buffers_.end());
    share("broadcast of parameters", everything);
  }

  void share(const char* what, const std::vector<at::Tensor>& tensors) {
    group_.guard(what, [&] {
      c10d::broadcast_coalesced(to_c10d(group_), tensors, kBroadcastBytes);
    });
  }

  void make_reducer(const ParameterSet& model) {
    std::vector<at::Tensor> parameters;
    std::unordered_map<size_t, std::string> names;
    for (size_t i = 0; i < model.parameters.size(); ++i) {
      if (model.parameters[i].requires_grad()) {
        names[parameters.size()] = model.names[i];
        parameters.push_back(model.parameters[i]);
      }
    }
    const std::vector<bool> sparse(parameters.size(), false);
    const int64_t cap = options_.bucket_cap_mb * kMiB;
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters,
        {static_cast<size_t>(kMiB), static_cast<size_t>(cap)},
        sparse);
    // Gradients arrive last layer first.
    std::reverse(buckets.begin(), buckets.end());
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters,
        buckets,
        to_c10d(group_),
        sparse,
        cap,
        options_.find_unused_parameters,
        options_.gradient_as_bucket_view,
        names,
        /*first_bucket_bytes_cap=*/kMiB,
        /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
    // The reducer asks its logger without looking whether it has one.
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    if (options_.static_graph) {
      reducer_->set_static_graph();
    }
  }

  // The reducer of a static graph learns the graph from the first pass and
  // reduces when that pass has ended.
  void watch_first_pass(std::span<at::Tensor* const> outputs) {
    for (auto* output : outputs) {
      if (output->requires_grad()) {
        *output = NotifyingIdentity::apply(
            *output,
            reinterpret_cast<int64_t>(static_cast<BackwardNotifier*>(this)));
      }
    }
  }

  void on_backward() override {
    if (!has_queued_first_reduction_) {
      has_queued_first_reduction_ = true;
      torch::autograd::Engine::get_default_engine().queue_callback(
          [this] { reducer_->delay_all_reduce(); });
    }
  }

  ProcessGroup group_;
  DdpOptions options_;
  std::vector<at::Tensor> buffers_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
  bool sync_ = true;
  bool has_seen_graph_ = false;
  bool has_queued_first_reduction_ = false;
};

bool is_trained(const ParameterSet& model) {
  return std::any_of(
      model.parameters.begin(), model.parameters.end(), [](const auto& p) {
        return p.requires_grad();
      });
}

} // namespace

std::unique_ptr<ParallelEngine> make_ddp_engine(
    const ProcessGroup& group,
    const ParameterSet& model,
    const DdpOptions& options) {
  if (options.bucket_cap_mb < 1) {
    throw UsageError(str_cat(
        "[prepare] got bucket_cap_mb ",
        options.bucket_cap_mb,
        ", expected at least 1"));
  }
  agree_on_text(group, "prepare", describe(model));
  // A frozen model has no gradients to average.
  if (!is_trained(model)) {
    return make_single_device_engine();
  }
  return std::make_unique<DdpEngine>(group, model, options);
}

} // namespace accelerate
