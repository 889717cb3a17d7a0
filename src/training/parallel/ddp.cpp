// SPDX-License-Identifier: Apache-2.0
// Distributed data parallelism on c10d's Reducer: averages buckets of gradients
// while backward is running.
#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <mutex>

#include "accelerate/distributed/c10d.h"
#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/hint.h"
#include "training/comm/agreement.h"
#include "training/device/streams.h"
#include "training/parallel/arrivals.h"
#include "training/parallel/carried_errors.h"
#include "training/parallel/compression.h"
#include "training/parallel/engine.h"
#include "training/parallel/join.h"
#include "training/parallel/joinable.h"
#include "training/parallel/layer_table.h"
#include "training/parallel/shared_tensors.h"
#include "training/parallel/unused_parameters.h"

namespace accelerate {
namespace {

constexpr int64_t kMiB = 1024 * 1024;
constexpr const char* kOrder = "arrival_order";

/// Called by a graph when its backward starts. Empty after the engine is
/// destroyed, because graphs may outlive it.
struct BackwardNotifier : torch::CustomClassHolder {
  std::function<void()> on_backward;
};
/// The identity. Its backward calls a `BackwardNotifier`.
struct NotifyingIdentity : torch::autograd::Function<NotifyingIdentity> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& output,
      const c10::intrusive_ptr<BackwardNotifier>& notifier) {
    context->saved_data["notifier"] = c10::IValue::make_capsule(notifier);
    return output.view_as(output);
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::tensor_list gradients) {
    const auto notifier = c10::static_intrusive_pointer_cast<BackwardNotifier>(
        context->saved_data["notifier"].toCapsule());
    if (notifier->on_backward) {
      notifier->on_backward();
    }
    return {gradients[0], {}};
  }
};

/// Hides from autograd that gradients are views into buckets. torch's
/// `Optimizer::zero_grad` detaches gradients in place, which fails for views.
using UnmarkedViews = at::AutoDispatchBelowADInplaceOrView;

/// Gives access to the reducer's buckets. Since torch 2.15, `get_grad_buckets`
/// throws if a bucket has no memory, e.g. a bucket of sparse gradients.
class OpenReducer : public c10d::Reducer {
 public:
  using Reducer::Reducer;
  struct BucketView {
    at::Tensor memory;
    std::vector<at::Tensor> parameters;
  };
  std::vector<BucketView> buckets() const {
    const std::lock_guard lock(mutex_);
    std::vector<BucketView> views;
    for (const auto& bucket : buckets_) {
      views.push_back({bucket.gradients, bucket.variables});
    }
    return views;
  }
  /// Sets whether gradients that arrive are sent. `prepare_for_backward` also
  /// enables this.
  void set_sends(bool sends) {
    const std::lock_guard lock(mutex_);
    expect_autograd_hooks_ = sends;
  }
  /// Call this after an aborted backward if gradients are stored in buckets.
  /// Buckets that were sent get their averages. In other buckets, undoes the
  /// division of the gradients in `has_arrived`.
  void finish_gradients(const std::vector<char>& has_arrived, bool is_divided) {
    const std::lock_guard lock(mutex_);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      auto& bucket = buckets_[i];
      if (bucket.expect_sparse_gradient) {
        continue;
      }
      if (i < next_bucket_) {
        bucket.future_work->waitAndThrow();
        const auto mean =
            c10d::detail::parseCppCommHookResult(bucket.future_work->value());
        if (!mean.is_alias_of(bucket.gradients)) {
          bucket.gradients.copy_(mean);
        }
        continue;
      }
      for (size_t j = 0; is_divided && j < bucket.variables.size(); ++j) {
        if (has_arrived[bucket.variable_indices[j]] != 0) {
          bucket.bucket_views_in[j].mul_(div_factor_);
        }
      }
    }
  }
};

/// A completed `Work` that returns the divisor for the reducer.
class KnownCount final : public c10d::Work {
 public:
  explicit KnownCount(int64_t count)
      : future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::ofTensors())) {
    future_->markCompleted(std::vector<at::Tensor>{at::full({1}, count)});
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

std::string describe(const ParameterSet& model, const DdpOptions& options) {
  // Everything that makes ranks send different data, besides the tensors.
  return str_cat(
      "compression ",
      static_cast<int>(options.compression),
      " rank ",
      options.power_sgd.matrix_approximation_rank,
      " start ",
      options.power_sgd.start_powerSGD_iter,
      ", buckets of ",
      options.bucket_cap_mb,
      " MiB",
      options.broadcast_buffers ? ", shared buffers" : "",
      options.find_unused_parameters ? ", unused parameters" : "",
      options.static_graph ? ", static graph" : "",
      '\n',
      describe_model(model));
}

class DdpLayer final : public ForwardLayer,
                       public ExchangeLayer,
                       public UpdateLayer,
                       public CaptureLayer,
                       public StateLayer,
                       private Joinable {
 public:
  DdpLayer(const EngineArguments& arguments, const DdpOptions& options)
      : layout_(arguments.engine->layout()),
        group_(arguments.group),
        options_(options),
        model_(arguments.model),
        buffers_(arguments.model) {
    for (const auto& parameter : model_.parameters) {
      parameters_.push_back(parameter.detach());
    }
    share("broadcast of parameters", parameters_, 0);
    buffers_.share(group_, 0);
    make_reducer();
    notifier_->on_backward = [this] { on_backward(); };
  }
  ~DdpLayer() override { notifier_->on_backward = nullptr; }

  void before_forward() override {
    trains_ = at::GradMode::is_enabled() && is_trained(model_);
    const bool records = trains_;
    // A reducer of a static graph counts forwards, so its first forward must be
    // followed by a backward.
    const bool repeats_first = options_.static_graph && sync_ && is_awaiting_ &&
                               !has_queued_first_reduction_;
    if (records && (is_abandoned_ || repeats_first)) {
      remake_reducer_beside_gradients();
    }
    if (records && (forgets_used_ || trains_others())) {
      follow_frozen();
    }
    if (records && !sync_ && options_.static_graph &&
        !has_queued_first_reduction_) {
      // The reducer would learn the graph from several backwards, and later
      // always wait for as many.
      throw UsageError(str_cat(
          "[forward] With static_graph, the first backward pass must "
          "synchronise gradients, but this one only accumulates them (because "
          "of accumulate, no_sync or LocalSGD). ",
          hint(
              "First run one step that synchronises gradients, set "
              ".accumulation.sync_each_batch, or leave static_graph off",
              "First run one step that synchronises gradients, pass "
              "GradientAccumulationPlugin(sync_each_batch=True), or leave "
              "static_graph off")));
    }
    int root = 0;
    if (join_) {
      const auto announced =
          join_->announce(JoinEvent::kForward, join_index_, records, sync_);
      root = announced.last_active;
      set_divisor(announced);
    }
    if (records && sync_ && !has_shared_order_ && lays_out_anew() && !join_) {
      share_order();
    }
    if (records && !sync_ && is_awaiting_ && !options_.static_graph &&
        arrivals_->num_arrived() == num_at_await_) {
      // The backward of the previous forward has not run. Otherwise the
      // gradients of this forward's backward would be sent in its place.
      postpone();
    }
    const bool is_unfinished = is_awaiting_ && !finds_unused() &&
                               !is_only_guessed_ &&
                               arrivals_->num_arrived() > num_at_await_;
    if (records && !sync_ && is_unfinished) {
      // Otherwise backwards that send nothing would give the reducer gradients
      // twice.
      name_unused_parameters(names_, [&] { rebuild_buckets(); });
    }
    if (records && sync_) {
      // Buckets are laid out again once, in the order in which gradients
      // arrived. Ranks exchange this order.
      if (reducer_->should_rebuild_buckets()) {
        agree_on(kForward);
      }
      group_.guard("forward", [&] {
        name_unused_parameters(names_, [&] {
          reducer_->prepare_for_forward();
          rebuild_buckets();
        });
      });
    }
    share_buffers(root, records && sync_);
  }

  bool wants_outputs() const override {
    return trains_ && sync_ &&
           (join_ || options_.find_unused_parameters ||
            (options_.static_graph && !has_queued_first_reduction_));
  }

  void after_forward(std::span<at::Tensor* const> outputs) override {
    if (!trains_ || !sync_) {
      return;
    }
    std::vector<at::Tensor> roots;
    if (options_.find_unused_parameters && !options_.static_graph) {
      for (const auto* output : outputs) {
        roots.push_back(*output);
      }
    }
    reducer_->prepare_for_backward(roots);
    await_gradients();
    ++num_forwards_;
    has_announced_backward_ = false;
    if (join_ || (options_.static_graph && !has_queued_first_reduction_)) {
      watch_backward(outputs);
    }
  }

  void set_buffers(
      const std::vector<std::string>& names,
      const std::vector<at::Tensor>& buffers) override {
    buffers_.set(names, buffers);
  }
  void set_sync(bool sync) override { sync_ = sync; }
  bool sync() const override { return sync_; }
  void sync_next_backward() override {
    if (join_) {
      throw UsageError(
          "[trigger_sync_in_backward] This call does not work inside "
          "join_uneven_inputs, because ranks that are out of batches cannot "
          "take part. Run the forward pass outside no_sync instead");
    }
    reducer_->prepare_for_forward();
    reducer_->prepare_for_backward({});
    await_gradients();
  }

  void before_backward() override {
    num_before_ = arrivals_->begin_backward();
    if (sync_ && is_postponed_) {
      reducer_->set_sends(true);
      await_gradients();
    }
    is_in_backward_ = true;
    has_arrived_.assign(has_arrived_.size(), false);
    frozen_since_forward_.clear();
    for (const auto& parameter : trained_) {
      if (!parameter.requires_grad() && !parameter.grad().defined()) {
        frozen_since_forward_.push_back(parameter);
      }
    }
  }

  void after_backward() override {
    is_in_backward_ = false;
    // The reducer has filled these gradients with zeros.
    for (const auto& parameter : frozen_since_forward_) {
      parameter.mutable_grad().reset();
    }
    if (!arrivals_->is_known()) {
      arrival_ = GradientArrival::kUnknown;
      return;
    }
    const auto num_arrived = arrivals_->num_arrived();
    const auto num_awaited = static_cast<int64_t>(trained_.size());
    const bool have_all_come = num_arrived - num_at_await_ >= num_awaited;
    if (sync_ && is_awaiting_ && !have_all_come) {
      check_hooks();
    }
    if (num_arrived == num_before_) {
      arrival_ = GradientArrival::kNone;
      return;
    }
    has_unsent_ = has_unsent_ || !sync_;
    arrival_ = !sync_ || is_awaiting_ ? GradientArrival::kSynchronised
                                      : GradientArrival::kLocal;
    // If parameters may be unused, the reducer knows which ones it waits for.
    if (sync_ && is_awaiting_ && (finds_unused() || have_all_come)) {
      end_reduction();
    }
  }

  void await_another_backward() override { ++num_forwards_; }

  void abandon_backward() override {
    is_in_backward_ = false;
    if (!sync_ || !is_awaiting_ || arrivals_->num_arrived() == num_before_) {
      return;
    }
    is_abandoned_ = true;
    // The reducer of a static graph does nothing in the first backward.
    const bool has_begun = !options_.static_graph || has_reduced_;
    if (options_.gradient_as_bucket_view && has_begun) {
      try {
        reducer_->finish_gradients(
            has_arrived_, options_.compression == Compression::kNone);
      } catch (const std::exception&) {
        // Keep the backward's own error. No reduction follows.
      }
    }
  }

  GradientArrival arrival() const override { return arrival_; }

  // A backward of an older forward would use changed weights, so stop waiting
  // for it.
  void after_step(bool /*did_step*/) override {
    if (is_only_guessed_) {
      forget_forwards();
    }
    num_forwards_ = is_awaiting_ ? 1 : 0;
  }

  std::string why_not_to_record() const override {
    const auto refuse = [](const char* what) {
      return str_cat(what, " needs the host in every step");
    };
    if (join_) {
      return refuse("join_uneven_inputs");
    }
    if (finds_unused()) {
      return refuse(
          options_.static_graph ? "static_graph" : "find_unused_parameters");
    }
    if (options_.compression != Compression::kNone) {
      return refuse("gradient compression");
    }
    if (!model_.sparse_gradients.empty()) {
      return refuse("sparse gradients");
    }
    return arrivals_->is_known() ? "" : refuse("compiled autograd");
  }
  // A gradient arrives on the stream on which its parameter was first awaited.
  // A recorded gradient must not wait for the default stream.
  void prepare_recording() override {
    if (!std::exchange(is_recorded_, true)) {
      remake_reducer_beside_gradients();
    }
  }
  bool is_recordable() const override {
    return has_reduced_ && !is_awaiting_ && !is_abandoned_;
  }
  size_t num_layouts() const override { return num_layouts_; }
  bool shares_buffers_next() const override {
    return options_.broadcast_buffers && buffers_may_differ_ &&
           !buffers_.tensors().empty();
  }
  void set_shares_buffers_next(bool shares) override {
    buffers_may_differ_ = shares;
  }

  StateDict state_dict() const override {
    auto state = memory_ ? memory_->state_dict() : StateDict();
    if (!order_.empty()) {
      state.set(kOrder, at::tensor(order_, at::kLong));
    }
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    if (memory_) {
      memory_->load_state_dict(state);
    }
    if (state.contains(kOrder)) {
      loaded_order_ = as_order(state.get<at::Tensor>(kOrder));
    }
    // The reducer remembers which parameters earlier micro-batches of the
    // accumulation used.
    forgets_used_ = has_unsent_ && options_.find_unused_parameters;
    const auto& all = model_.parameters;
    has_unsent_ = std::any_of(all.begin(), all.end(), [](const auto& each) {
      return each.grad().defined();
    });
    if (!options_.static_graph) {
      forget_forwards();
    }
  }

  void note_loaded_gradient(const at::Tensor& parameter) override {
    std::erase_if(left_behind_, [&](const at::Tensor& known) {
      return known.is_same(parameter);
    });
    if (parameter.grad().defined()) {
      has_unsent_ = true;
      if (!parameter.requires_grad()) {
        left_behind_.push_back(parameter);
      }
    }
  }

  // Null for static graphs, because ranks without batches cannot match their
  // first backward.
  Joinable* joinable() override {
    return options_.static_graph ? nullptr : this;
  }

  void begin_join(std::shared_ptr<JoinChannel> channel, int64_t index)
      override {
    join_ = std::move(channel);
    join_index_ = index;
  }

  void end_join() override {
    join_.reset();
    compression_->divisor = group_.world_size();
    reducer_->set_forward_pass_work_handle(
        nullptr, /*useStaticWorldSize=*/true);
  }

  void match(const JoinAnnouncement& announced) override {
    group_.guard("join_uneven_inputs", [&] {
      if (announced.event == JoinEvent::kForward) {
        match_forward(announced);
      } else {
        match_backward();
      }
    });
  }

  void share_all(int root) override {
    share("broadcast of parameters", parameters_, root);
    if (options_.broadcast_buffers) {
      buffers_.share(group_, root);
    }
  }

 private:
  bool finds_unused() const {
    return options_.find_unused_parameters || options_.static_graph;
  }

  /// Whether the parameters that require a gradient differ from those that the
  /// reducer knows.
  bool trains_others() const {
    for (size_t i = 0; i < is_reduced_.size(); ++i) {
      if (model_.parameters[i].requires_grad() != is_reduced_[i]) {
        return true;
      }
    }
    return false;
  }

  /// Makes the reducer wait for the parameters that currently require a
  /// gradient.
  void follow_frozen() {
    std::erase_if(left_behind_, [](const at::Tensor& parameter) {
      return parameter.requires_grad();
    });
    for (size_t i = 0; has_unsent_ && i < is_reduced_.size(); ++i) {
      const auto& parameter = model_.parameters[i];
      if (!is_reduced_[i] || parameter.requires_grad()) {
        continue;
      }
      if (model_.sparse_gradients.contains(model_.names[i])) {
        throw UsageError(str_cat(
            "[forward] Parameter '",
            model_.names[i],
            "' has sparse gradients and was frozen during gradient "
            "accumulation, so its gradient would not be synchronised. Freeze "
            "it after optimizer.step() and zero_grad()"));
      }
      leave_behind(parameter);
    }
    if (trains_others()) {
      if (join_) {
        throw UsageError(
            "[forward] Parameters were frozen or unfrozen inside "
            "join_uneven_inputs, but ranks that are out of batches cannot do "
            "the same. Freeze or unfreeze them before the block");
      }
      if (!group_.is_shut_down()) {
        agree_on_text(group_, kRefrozenForward, trained_names(model_));
      }
    }
    forgets_used_ = false;
    remake_reducer_beside_gradients();
  }

  void leave_behind(const at::Tensor& parameter) {
    if (std::none_of(
            left_behind_.begin(), left_behind_.end(), [&](const auto& known) {
              return known.is_same(parameter);
            })) {
      left_behind_.push_back(parameter);
    }
  }

  // Averages gradients of parameters that were frozen during an accumulation,
  // together with the update that ends it. Ranks freeze the same parameters,
  // but some ranks may have no gradient for one of them.
  void average_left_behind() {
    if (left_behind_.empty()) {
      return;
    }
    const at::NoGradGuard no_grad;
    const auto parameters = std::exchange(left_behind_, {});
    std::vector<int> has(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      has[i] = parameters[i].grad().defined() ? 1 : 0;
    }
    auto has_any = at::tensor(has, at::kInt);
    group_.all_reduce(has_any, ReduceOp::kMax);
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (has_any[i].item<int>() == 0) {
        continue;
      }
      at::Tensor& gradient = at::Tensor(parameters[i]).mutable_grad();
      if (!gradient.defined()) {
        gradient = at::zeros_like(parameters[i]);
      }
      group_.all_reduce(gradient, ReduceOp::kMean);
    }
  }

  /// Called by autograd before the reducer's own hook. If a parameter's
  /// gradient arrives in two parts, the first one may already have been sent.
  void check_only_once(size_t position) {
    const bool is_second = std::exchange(has_arrived_[position], true);
    if (is_second && is_in_backward_ && sync_ && !options_.static_graph) {
      throw UsageError(str_cat(
          "[backward] Parameter '",
          names_[position],
          "' received a second gradient in one backward pass, because a "
          "recomputed segment shares it with other code. Use it in one segment "
          "only, or set static_graph"));
    }
  }

  void check_hooks() {
    for (size_t i = 0; i < trained_.size(); ++i) {
      if (!arrivals_->is_hooked(i, trained_[i])) {
        // Report this once. The next forward hooks the new parameters.
        is_awaiting_ = false;
        is_abandoned_ = true;
        throw UsageError(str_cat(
            "[backward] The gradient of '",
            names_[i],
            "' was not synchronised, because torch replaced the parameter "
            "after prepare(), for example through torch.nn.utils.parametrize "
            "or a dtype conversion. Change modules before prepare(), or "
            "prepare them with a new Accelerator"));
      }
    }
  }

  void await_gradients() {
    is_awaiting_ = true;
    is_postponed_ = false;
    is_only_guessed_ = false;
    num_at_await_ = arrivals_->num_arrived();
    // A forward inside a backward, e.g. in GradCache, has its own gradients.
    has_arrived_.assign(has_arrived_.size(), false);
  }

  // Stops sending until a backward that synchronises.
  void postpone() {
    reducer_->set_sends(false);
    is_awaiting_ = false;
    is_postponed_ = true;
  }

  // Called when no earlier forward can have a backward any more.
  void forget_forwards() {
    reducer_->set_sends(false);
    is_awaiting_ = false;
    is_postponed_ = false;
    is_only_guessed_ = false;
    num_forwards_ = 0;
  }

  // The reducer has sent everything, and ignores gradients until another
  // forward is announced. If there were several forwards, their own backwards
  // may follow.
  void end_reduction() {
    is_awaiting_ = false;
    has_unsent_ = false;
    average_left_behind();
    if (!join_) {
      // Lay out buckets immediately, so that a state that is saved now contains
      // the order. The reducer allows only one reduction before this.
      group_.guard("backward", [&] { rebuild_buckets(); });
      has_reduced_ = true;
    }
    const bool may_follow = num_forwards_ > 1 && !finds_unused() && !join_;
    if (may_follow) {
      group_.guard("backward", [&] { reducer_->prepare_for_backward({}); });
      await_gradients();
      is_only_guessed_ = true;
      --num_forwards_;
    } else {
      num_forwards_ = 0;
    }
  }

  void
  share(const char* what, const std::vector<at::Tensor>& tensors, int root) {
    broadcast_tensors(group_, what, tensors, root);
  }

  /// Called before ranks communicate in a forward. Inside a join, other ranks
  /// may be at a different point. After the end of training, a forward does not
  /// communicate.
  void agree_on(const std::string& operation) const {
    if (!join_ && !group_.is_shut_down()) {
      agree_on_text(group_, operation, "");
    }
  }

  // Shares buffers like PyTorch: once after a forward that changed them. So
  // ranks may validate with different numbers of batches.
  void share_buffers(int root, bool trains) {
    if (options_.broadcast_buffers && buffers_may_differ_) {
      if (buffers_.is_shared()) {
        agree_on(buffers_.name(kForward));
      }
      buffers_.share(group_, root);
    }
    buffers_may_differ_ = trains;
  }

  bool lays_out_anew() const {
    return !options_.find_unused_parameters || options_.static_graph;
  }

  /// Empty if the saved order belongs to other parameters.
  std::vector<int64_t> as_order(const at::Tensor& saved) const {
    const auto wide = saved.to(at::kCPU, at::kLong).flatten().contiguous();
    const auto* values = wide.data_ptr<int64_t>();
    std::vector<int64_t> order(values, values + wide.numel());
    return is_order(order) ? order : std::vector<int64_t>();
  }
  bool is_order(std::vector<int64_t> indices) const {
    std::sort(indices.begin(), indices.end());
    return indices == trained_indices();
  }

  std::vector<int64_t> trained_indices() const {
    std::vector<int64_t> indices;
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      if (model_.parameters[i].requires_grad()) {
        indices.push_back(static_cast<int64_t>(i));
      }
    }
    return indices;
  }

  // A bit-identical resume needs the same buckets: the position of an element
  // in its bucket determines the order in which more than two ranks add it up.
  // Called before the first reduction, at the same point on all ranks. Uses
  // rank 0's order, because another rank may have lost its files of a
  // checkpoint.
  void share_order() {
    agree_on(kForward);
    const auto num_trained = static_cast<int64_t>(trained_.size());
    auto order = is_order(loaded_order_)
                     ? at::tensor(loaded_order_, at::kLong)
                     : at::full({num_trained}, -1, at::kLong);
    order = order.to(trained_.front().device());
    share("order of gradients", {order}, 0);
    has_shared_order_ = true;
    auto agreed = as_order(order);
    if (agreed.empty()) {
      return;
    }
    order_ = std::move(agreed);
    group_.guard("forward", [&] {
      remake_reducer_beside_gradients([&] {
        // Otherwise the reducer would use the order of the next gradients.
        reducer_->push_rebuilt_params_for_all_indices();
        rebuild_buckets();
      });
    });
  }

  // Makes a reducer while gradients are set aside. A new reducer would move
  // accumulated gradients into its buckets and divide them instead of
  // multiplying them, which rounds differently.
  void remake_reducer_beside_gradients(const std::function<void()>& then = [] {
  }) {
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : model_.parameters) {
      gradients.push_back(std::exchange(parameter.mutable_grad(), {}));
    }
    const auto put_back = c10::make_scope_exit([&] {
      for (size_t i = 0; i < gradients.size(); ++i) {
        model_.parameters[i].mutable_grad() = gradients[i];
      }
    });
    remake_reducer();
    then();
  }

  void set_divisor(const JoinAnnouncement& announced) {
    compression_->divisor = join_->divisor(announced);
    if (announced.records && announced.syncs && join_->divides_by_active()) {
      reducer_->set_forward_pass_work_handle(
          c10::make_intrusive<KnownCount>(announced.num_active),
          /*useStaticWorldSize=*/false);
    }
  }

  void match_forward(const JoinAnnouncement& announced) {
    compression_->divisor = join_->divisor(announced);
    if (announced.records && announced.syncs) {
      name_unused_parameters(names_, [&] { rebuild_buckets(); });
    }
    share_buffers(announced.last_active, announced.records && announced.syncs);
  }

  void match_backward() {
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> sums;
    for (auto& bucket : reducer_->get_grad_buckets()) {
      sums.push_back(reducer_->run_comm_hook(bucket));
    }
    for (const auto& sum : sums) {
      sum->waitAndThrow();
    }
    if (options_.find_unused_parameters) {
      std::vector<at::Tensor> used = {
          at::zeros_like(reducer_->get_local_used_map_on_device())};
      to_c10d(group_)->allreduce(used)->wait();
    }
    // A rank without any batch has no gradient order of its own, so set one.
    reducer_->push_rebuilt_params_for_all_indices();
  }

  // Replaces the reducer, because a reducer whose backward was aborted waits
  // forever. Ranks have sent the same gradients if they aborted at the same
  // point.
  void remake_reducer() {
    is_abandoned_ = false;
    is_awaiting_ = false;
    is_postponed_ = false;
    num_forwards_ = 0;
    has_queued_first_reduction_ = false;
    const auto kept = memory_ ? memory_->state_dict() : StateDict();
    arrivals_.reset();
    logger_.reset();
    reducer_.reset();
    make_reducer();
    if (memory_) {
      memory_->load_state_dict(kept);
    }
  }

  void make_reducer() {
    std::optional<StreamScope> stream;
    if (is_recorded_) {
      stream.emplace(StreamRole::kRecording, parameters_.front().device());
    }
    has_reduced_ = false;
    ++num_layouts_;
    std::vector<at::Tensor> parameters;
    std::vector<bool> sparse;
    std::unordered_map<size_t, std::string> names;
    index_of_.clear();
    names_.clear();
    model_indices_.clear();
    is_reduced_.clear();
    for (const auto& parameter : model_.parameters) {
      is_reduced_.push_back(parameter.requires_grad());
    }
    const bool has_order = is_order(order_);
    if (!has_order) {
      order_.clear();
    }
    for (const int64_t index : has_order ? order_ : trained_indices()) {
      const auto i = static_cast<size_t>(index);
      index_of_.emplace(
          model_.parameters[i].unsafeGetTensorImpl(), parameters.size());
      names[parameters.size()] = model_.names[i];
      names_.push_back(model_.names[i]);
      model_indices_.push_back(index);
      parameters.push_back(model_.parameters[i]);
      sparse.push_back(model_.sparse_gradients.contains(model_.names[i]));
    }
    const int64_t cap = options_.bucket_cap_mb * kMiB;
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters,
        {static_cast<size_t>(kMiB), static_cast<size_t>(cap)},
        sparse);
    if (!has_order) {
      // Gradients of the last layers arrive first.
      std::reverse(buckets.begin(), buckets.end());
    }
    layout_.set_units(parameters, buckets);
    // Installed before the reducer's own hooks, which may send gradients.
    arrivals_ = std::make_unique<Arrivals>(parameters, [this](size_t position) {
      finish_comparison(group_);
      check_only_once(position);
    });
    has_arrived_.assign(parameters.size(), false);
    const UnmarkedViews unmarked;
    reducer_ = std::make_shared<OpenReducer>(
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
    // The reducer dereferences its logger without checking.
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    if (options_.static_graph) {
      reducer_->set_static_graph();
    }
    compression_->group = to_c10d(group_);
    compression_->divisor = group_.world_size();
    compression_->name_of = [this](const at::Tensor& parameter) {
      return names_[index_of_.at(parameter.unsafeGetTensorImpl())];
    };
    auto compression = make_compression(options_, compression_);
    memory_ = std::move(compression.memory);
    if (compression.hook) {
      reducer_->register_comm_hook(std::move(compression.hook));
    }
    trained_ = std::move(parameters);
    place_buckets();
  }

  void rebuild_buckets() {
    {
      const UnmarkedViews unmarked;
      if (!reducer_->rebuild_buckets()) {
        return;
      }
    }
    std::vector<std::vector<size_t>> units;
    order_.clear();
    for (const auto& bucket : reducer_->buckets()) {
      auto& unit = units.emplace_back();
      for (const auto& parameter : bucket.parameters) {
        unit.push_back(index_of_.at(parameter.unsafeGetTensorImpl()));
        order_.push_back(model_indices_[unit.back()]);
      }
    }
    layout_.set_units(trained_, std::move(units));
    place_buckets();
    if (memory_) {
      // Restored by name into the new buckets, because a resumed run needs the
      // state before the buckets are laid out again.
      memory_->load_state_dict(memory_->state_dict());
    }
  }

  // Moves the reducer's buckets to our memory. The reducer allocates them
  // itself.
  void place_buckets() {
    for (const auto& bucket : reducer_->buckets()) {
      // A bucket of sparse gradients has no memory of its own.
      if (bucket.memory.defined()) {
        layout_.move_in(MemoryUse::kGradients, bucket.memory);
      }
    }
  }

  void watch_backward(std::span<at::Tensor* const> outputs) {
    for (auto* output : outputs) {
      if (output->requires_grad()) {
        *output = NotifyingIdentity::apply(*output, notifier_);
      }
    }
  }

  void on_backward() {
    if (join_ && !has_announced_backward_) {
      has_announced_backward_ = true;
      try {
        join_->announce(JoinEvent::kBackward, join_index_, true, true);
      } catch (const Error&) {
        throw_carried();
      }
    }
    // The reducer of a static graph learns the graph from the first backward
    // and reduces at its end.
    if (options_.static_graph && !has_queued_first_reduction_) {
      has_queued_first_reduction_ = true;
      torch::autograd::Engine::get_default_engine().queue_callback(
          [reducer = reducer_] { reducer->delay_all_reduce(); });
    }
  }

  MemoryLayout& layout_;
  ProcessGroup group_;
  DdpOptions options_;
  ParameterSet model_;
  SharedBuffers buffers_;
  /// All parameters, including frozen ones, without their graph.
  std::vector<at::Tensor> parameters_;
  /// For each parameter of the model: whether the reducer knows it.
  std::vector<bool> is_reduced_;
  /// The parameters known to the reducer that were frozen and had no gradient
  /// when the backward began.
  std::vector<at::Tensor> frozen_since_forward_;
  /// The parameters that the reducer knows, their names, and their indices in
  /// the model.
  std::vector<at::Tensor> trained_;
  std::vector<std::string> names_;
  std::vector<int64_t> model_indices_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
  /// The trained parameters, by their indices in the model, in the order of the
  /// buckets; empty until the buckets are laid out again.
  std::vector<int64_t> order_;
  /// The order in a state that was loaded before the first reduction.
  std::vector<int64_t> loaded_order_;
  bool has_shared_order_ = false;
  /// State that a compression keeps between steps; may be null.
  std::shared_ptr<Stateful> memory_;
  std::shared_ptr<CompressionState> compression_ =
      std::make_shared<CompressionState>();
  std::shared_ptr<JoinChannel> join_;
  int64_t join_index_ = 0;
  std::shared_ptr<OpenReducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
  c10::intrusive_ptr<BackwardNotifier> notifier_ =
      c10::make_intrusive<BackwardNotifier>();
  std::unique_ptr<Arrivals> arrivals_;
  GradientArrival arrival_ = GradientArrival::kUnknown;
  /// The numbers of gradients that had arrived when the current backward began,
  /// and when the reducer started to wait.
  int64_t num_before_ = 0;
  int64_t num_at_await_ = 0;
  bool is_awaiting_ = false;
  /// Whether a forward was announced to the reducer, but its gradients are not
  /// sent until a backward synchronises.
  bool is_postponed_ = false;
  bool is_in_backward_ = false;
  /// For each parameter that the reducer knows: whether the current backward
  /// has computed its gradient. Bytes, because autograd's threads write them.
  std::vector<char> has_arrived_;
  /// Whether the reducer waits for the backward of an earlier forward, which
  /// may never run.
  bool is_only_guessed_ = false;
  /// Whether the last backward was aborted.
  bool is_abandoned_ = false;
  /// How many forwards since the last reduction may still have a backward.
  int64_t num_forwards_ = 0;
  bool sync_ = true;
  /// Whether the current or last forward recorded a graph for a backward.
  bool trains_ = false;
  /// Whether a backward has accumulated gradients that other ranks have not
  /// received.
  bool has_unsent_ = false;
  /// Parameters that were frozen while they had accumulated gradients that
  /// other ranks have not received.
  std::vector<at::Tensor> left_behind_;
  /// Whether the next forward must wait for all parameters, regardless of which
  /// were used before a state was loaded.
  bool forgets_used_ = false;
  bool buffers_may_differ_ = true;
  bool has_queued_first_reduction_ = false;
  bool has_announced_backward_ = false;
  /// Whether steps may be recorded.
  bool is_recorded_ = false;
  /// Whether this reducer has made its first reduction, after which it has laid
  /// out its buckets.
  bool has_reduced_ = false;
  size_t num_layouts_ = 0;
};

/// For a model without trainable parameters when it was prepared.
class FrozenLayer final : public ForwardLayer {
 public:
  explicit FrozenLayer(const ParameterSet& model) : model_(model) {}
  bool is_outdated() const override { return is_trained(model_); }

 private:
  ParameterSet model_;
};

} // namespace

std::unique_ptr<Layer> make_ddp_layer(
    const EngineArguments& arguments,
    const DdpOptions& options) {
  if (options.bucket_cap_mb < 1) {
    throw UsageError(str_cat(
        "[prepare] bucket_cap_mb is ",
        options.bucket_cap_mb,
        ". It must be at least 1"));
  }
  refuse_second_engine(arguments.model);
  agree_on_text(arguments.group, "prepare", describe(arguments.model, options));
  // A frozen model has no gradients to average.
  if (!is_trained(arguments.model)) {
    return std::make_unique<FrozenLayer>(arguments.model);
  }
  return std::make_unique<DdpLayer>(arguments, options);
}

} // namespace accelerate
