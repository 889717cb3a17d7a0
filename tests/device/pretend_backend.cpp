// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "device/pretend_accelerator.h"

namespace accelerate::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

at::Tensor host_copy(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.is_privateuseone(),
      "got a tensor on ",
      tensor.device(),
      ", expected one of the pretend devices");
  return at::from_blob(
      tensor.data_ptr(),
      tensor.sizes(),
      tensor.strides(),
      tensor.options().device(c10::kCPU));
}

Tensors host_copy(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) {
    all.push_back(host_copy(tensor));
  }
  return all;
}

std::vector<Tensors> host_copy(const std::vector<Tensors>& lists) {
  std::vector<Tensors> all;
  for (const auto& list : lists) {
    all.push_back(host_copy(list));
  }
  return all;
}

/// A completed collective.
class Done final : public c10d::Work {
 public:
  Done(int rank, Tensors outputs)
      : Work(rank, c10d::OpType::UNKNOWN), outputs_(std::move(outputs)) {
    std::vector<c10::Device> devices;
    for (const auto& output : outputs_) {
      devices = {output.device()};
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), devices);
    future_->markCompleted(c10::IValue(outputs_));
    finish();
  }
  bool wait(std::chrono::milliseconds) override { return true; }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class Backend final : public c10d::Backend {
 public:
  Backend(int rank, int size, c10::intrusive_ptr<c10d::Backend> gloo)
      : c10d::Backend(rank, size), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return kPretendBackend; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    gloo_->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override {
    gloo_->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return gloo_->getSequenceNumberForGroup();
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options)
      override {
    auto host = host_copy(tensors);
    return done(gloo_->broadcast(host, options), tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    auto host = host_copy(tensors);
    return done(gloo_->allreduce(host, options), tensors);
  }
  WorkPtr allgather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    auto host_outputs = host_copy(outputs);
    auto host_inputs = host_copy(inputs);
    return done(
        gloo_->allgather(host_outputs, host_inputs, options), outputs[0]);
  }
  WorkPtr _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override {
    auto host_output = host_copy(output);
    auto host_input = host_copy(input);
    return done(
        gloo_->_allgather_base(host_output, host_input, options), {output});
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    auto host_output = host_copy(output);
    auto host_input = host_copy(input);
    return done(
        gloo_->_reduce_scatter_base(host_output, host_input, options),
        {output});
  }
  WorkPtr gather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::GatherOptions& options) override {
    auto host_outputs = host_copy(outputs);
    auto host_inputs = host_copy(inputs);
    return done(
        gloo_->gather(host_outputs, host_inputs, options),
        outputs.empty() ? Tensors() : outputs[0]);
  }
  WorkPtr scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ScatterOptions& options) override {
    auto host_outputs = host_copy(outputs);
    auto host_inputs = host_copy(inputs);
    return done(gloo_->scatter(host_outputs, host_inputs, options), outputs);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return done(gloo_->barrier(options), {});
  }

 private:
  WorkPtr done(const WorkPtr& work, const Tensors& outputs) {
    work->wait();
    ++pretend_counts().collectives;
    return c10::make_intrusive<Done>(getRank(), outputs);
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
};

} // namespace

c10::intrusive_ptr<c10d::Backend> make_pretend_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int world_size,
    std::chrono::milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(timeout);
  options->devices = {Gloo::createDeviceForHostname("127.0.0.1")};
  return c10::make_intrusive<Backend>(
      rank,
      world_size,
      c10::make_intrusive<Gloo>(store, rank, world_size, options));
}

} // namespace accelerate::testing
