// SPDX-License-Identifier: Apache-2.0
#include "accelerate/process_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "accelerate/c10d.h"
#include "accelerate/error.h"
#include "base/str.h"
#include "comm/process_group_impl.h"
#include "comm/raw_check.h"

namespace accelerate {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      break;
  }
  return c10d::ReduceOp::SUM;
}

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kVictimDelay{300};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// c10d's messages go on with a C++ stack: one line is what a person wants.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

bool is_about_communication(const std::exception& error) {
  // A user's exception may come with a traceback, whose paths say nothing.
  const std::string message = first_line(error.what());
  return dynamic_cast<const c10::DistError*>(&error) != nullptr ||
         message.find("/gloo/") != std::string::npos ||
         message.find("NCCL") != std::string::npos;
}

bool is_timeout(const std::string& message) {
  return message.find("imed out") != std::string::npos ||
         message.find("timeout") != std::string::npos;
}

at::Tensor bytes_tensor(const std::string& bytes) {
  auto tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string to_string(const at::Tensor& bytes, int64_t size) {
  return {
      static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(size)};
}

} // namespace

ProcessGroup::Impl::Impl(
    c10::intrusive_ptr<c10d::ProcessGroup> group,
    std::string backend,
    bool owns,
    bool ranks_are_threads)
    : group_(std::move(group)),
      backend_(std::move(backend)),
      rank_(group_->getRank()),
      world_size_(group_->getSize()),
      solo_(false),
      owns_(owns),
      ranks_are_threads_(ranks_are_threads) {
  const auto devices = group_->getDeviceTypes();
  speaks_cpu_ = std::any_of(
      devices.begin(), devices.end(), [](const c10::Device& device) {
        return device.is_cpu();
      });
}

at::Tensor ProcessGroup::Impl::carried(const at::Tensor& tensor) const {
  return tensor.is_cpu() && !speaks_cpu_ ? tensor.to(at::kCUDA)
                                         : tensor.contiguous();
}

ProcessGroup::Impl::~Impl() {
  shutdown();
}

void ProcessGroup::Impl::shutdown() {
  if (group_ && owns_) {
    try {
      group_->shutdown();
    } catch (const std::exception&) {
      // A peer that is gone already is no reason not to leave.
    }
  }
  group_.reset();
}

void ProcessGroup::Impl::run(
    const char* operation,
    const std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)>&
        start) {
  finish(operation, *this->start(operation, start));
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::Impl::start(
    const char* operation,
    const std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)>&
        start) {
  if (!group_) {
    throw UsageError(str_cat(
        "[",
        operation,
        "] the process group is shut down; make collectives before "
        "end_training()"));
  }
  ++num_operations_;
  const auto begin = Clock::now();
  try {
    return start(*group_);
  } catch (const std::exception& error) {
    fail(operation, error.what(), seconds_since(begin));
  }
}

void ProcessGroup::Impl::finish(const char* operation, c10d::Work& work) {
  const auto begin = Clock::now();
  try {
    work.wait();
  } catch (const std::exception& error) {
    fail(operation, error.what(), seconds_since(begin));
  }
}

void ProcessGroup::Impl::guard(
    const char* operation,
    const std::function<void()>& work) {
  const auto begin = Clock::now();
  try {
    work();
  } catch (const std::exception& error) {
    if (!group_ || !is_about_communication(error)) {
      throw;
    }
    fail(operation, error.what(), seconds_since(begin));
  }
}

void ProcessGroup::Impl::fail(
    const char* operation,
    const std::string& cause,
    double seconds) const {
  const std::string message = str_cat(
      "[",
      operation,
      "] operation ",
      num_operations_,
      " of rank ",
      rank_,
      " of ",
      world_size_,
      " failed after ",
      seconds,
      " s: ",
      first_line(cause));
  if (is_timeout(cause)) {
    throw TimeoutError(str_cat(
        message,
        "; some rank did not call it: see that all ranks run the same "
        "collectives, or raise the timeout"));
  }
  // Whoever starts the processes takes the first that ends for the culprit:
  // the rank that really failed gets the time to be it.
  if (!ranks_are_threads_) {
    std::this_thread::sleep_for(kVictimDelay);
  }
  throw CommError(
      str_cat(message, "; a rank has most likely ended: see its own messages"));
}

ProcessGroup::ProcessGroup() : impl_(std::make_shared<Impl>()) {}
ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl)
    : impl_(std::move(impl)) {}

int ProcessGroup::rank() const {
  return impl_->rank();
}
int ProcessGroup::world_size() const {
  return impl_->world_size();
}
std::string ProcessGroup::backend() const {
  return impl_->backend();
}
bool ProcessGroup::ranks_are_threads() const {
  return impl_->ranks_are_threads();
}
void ProcessGroup::shutdown() {
  impl_->shutdown();
}

void ProcessGroup::guard(
    const char* operation,
    const std::function<void()>& work) const {
  impl_->guard(operation, work);
}

void ProcessGroup::check_collectives() {
  impl_->set_checks_collectives(!impl_->is_solo());
}

void ProcessGroup::barrier() const {
  if (!impl_->is_solo()) {
    check_raw(*this, "barrier", {});
    impl_->run("barrier", [](auto& group) { return group.barrier(); });
  }
}

void ProcessGroup::broadcast(at::Tensor tensor, int root) const {
  if (impl_->is_solo()) {
    return;
  }
  check_raw(*this, str_cat("broadcast from rank ", root), {tensor});
  c10d::BroadcastOptions options;
  options.rootRank = root;
  auto carried = impl_->carried(tensor);
  std::vector<at::Tensor> tensors = {carried};
  impl_->run("broadcast", [&](auto& group) {
    return group.broadcast(tensors, options);
  });
  if (!carried.is_same(tensor)) {
    at::NoGradGuard no_grad;
    tensor.copy_(carried);
  }
}

void ProcessGroup::all_reduce(at::Tensor tensor, ReduceOp op) const {
  if (impl_->is_solo()) {
    return;
  }
  check_raw(*this, str_cat("all_reduce ", static_cast<int>(op)), {tensor});
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op);
  auto carried = impl_->carried(tensor);
  std::vector<at::Tensor> tensors = {carried};
  impl_->run("all_reduce", [&](auto& group) {
    return group.allreduce(tensors, options);
  });
  at::NoGradGuard no_grad;
  if (!carried.is_same(tensor)) {
    tensor.copy_(carried);
  }
  if (op == ReduceOp::kMean) {
    // Gloo has no average; whole numbers are divided towards zero.
    tensor.div_(
        world_size(),
        at::isIntegralType(tensor.scalar_type(), true)
            ? std::optional<c10::string_view>("trunc")
            : std::nullopt);
  }
}

at::Tensor ProcessGroup::all_gather(const at::Tensor& tensor) const {
  if (impl_->is_solo()) {
    return tensor.detach().unsqueeze(0).clone();
  }
  if (tensor.is_complex()) {
    // Gloo knows no complex numbers.
    return at::view_as_complex(
        all_gather(at::view_as_real(tensor.resolve_conj())));
  }
  check_raw(*this, "all_gather", {tensor});
  auto shape = tensor.sizes().vec();
  shape.insert(shape.begin(), world_size());
  std::vector<at::Tensor> inputs = {impl_->carried(tensor.detach())};
  auto rows = at::empty(shape, inputs[0].options());
  std::vector<std::vector<at::Tensor>> outputs = {rows.unbind(0)};
  impl_->run("all_gather", [&](auto& group) {
    return group.allgather(outputs, inputs);
  });
  return rows.to(tensor.device());
}

at::Tensor ProcessGroup::gather(const at::Tensor& tensor, int root) const {
  if (impl_->is_solo()) {
    return all_gather(tensor);
  }
  check_raw(*this, str_cat("gather to rank ", root), {tensor});
  c10d::GatherOptions options;
  options.rootRank = root;
  at::Tensor rows;
  std::vector<std::vector<at::Tensor>> outputs;
  if (rank() == root) {
    auto shape = tensor.sizes().vec();
    shape.insert(shape.begin(), world_size());
    rows = at::empty(shape, tensor.options().requires_grad(false));
    outputs.push_back(rows.unbind(0));
  }
  std::vector<at::Tensor> inputs = {tensor.detach().contiguous()};
  impl_->run("gather", [&](auto& group) {
    return group.gather(outputs, inputs, options);
  });
  return rows;
}

void ProcessGroup::scatter(at::Tensor output, const at::Tensor& rows, int root)
    const {
  if (impl_->is_solo()) {
    output.copy_(rows[0]);
    return;
  }
  check_raw(*this, str_cat("scatter from rank ", root), {output});
  c10d::ScatterOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> outputs = {output};
  std::vector<std::vector<at::Tensor>> inputs;
  if (rank() == root) {
    inputs.push_back(rows.contiguous().unbind(0));
  }
  impl_->run("scatter", [&](auto& group) {
    return group.scatter(outputs, inputs, options);
  });
}

struct ProcessGroup::Transfer::State {
  std::shared_ptr<Impl> impl;
  const char* operation;
  at::Tensor tensor;
  /// What really travels, where the group has no backend for the tensor's
  /// device.
  at::Tensor carried;
  c10::intrusive_ptr<c10d::Work> work;
};
ProcessGroup::Transfer::Transfer() = default;
ProcessGroup::Transfer::Transfer(Transfer&&) noexcept = default;
ProcessGroup::Transfer& ProcessGroup::Transfer::operator=(Transfer&&) noexcept =
    default;
ProcessGroup::Transfer::~Transfer() {
  try {
    wait();
  } catch (const std::exception&) {
    // The peer is gone; whoever waits for it hears of it.
  }
}

void ProcessGroup::Transfer::wait() {
  if (const auto state = std::move(state_)) {
    state->impl->finish(state->operation, *state->work);
    if (!state->carried.is_same(state->tensor)) {
      state->tensor.copy_(state->carried);
    }
  }
}

ProcessGroup::Transfer
ProcessGroup::start_send(const at::Tensor& tensor, int to, int channel) const {
  Transfer transfer;
  std::vector<at::Tensor> tensors = {impl_->carried(tensor)};
  auto work = impl_->start(
      "send", [&](auto& group) { return group.send(tensors, to, channel); });
  transfer.state_.reset(new Transfer::State{
      impl_, "send", tensors[0], tensors[0], std::move(work)});
  return transfer;
}

ProcessGroup::Transfer
ProcessGroup::start_receive(at::Tensor tensor, int from, int channel) const {
  Transfer transfer;
  std::vector<at::Tensor> tensors = {impl_->carried(tensor)};
  auto work = impl_->start("receive", [&](auto& group) {
    return group.recv(tensors, from, channel);
  });
  transfer.state_.reset(new Transfer::State{
      impl_, "receive", tensor, tensors[0], std::move(work)});
  return transfer;
}

int ProcessGroup::open_channel() const {
  return impl_->open_channel();
}

std::string ProcessGroup::broadcast_bytes(const std::string& bytes, int root)
    const {
  if (impl_->is_solo()) {
    return bytes;
  }
  auto size = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
  broadcast(size, root);
  const auto length = size.item<int64_t>();
  auto content =
      rank() == root ? bytes_tensor(bytes) : at::empty({length}, at::kByte);
  if (length > 0) {
    broadcast(content, root);
  }
  return to_string(content, length);
}

std::vector<std::string> ProcessGroup::all_gather_bytes(
    const std::string& bytes) const {
  const auto own = static_cast<int64_t>(bytes.size());
  const auto sizes = all_gather(at::full({1}, own, at::kLong));
  const auto longest = sizes.max().item<int64_t>();
  auto padded = at::zeros({longest}, at::kByte);
  padded.slice(0, 0, own).copy_(bytes_tensor(bytes));
  const auto rows = longest > 0 ? all_gather(padded)
                                : at::empty({world_size(), 0}, at::kByte);
  std::vector<std::string> result;
  for (int rank = 0; rank < world_size(); ++rank) {
    result.push_back(to_string(rows[rank], sizes[rank].item<int64_t>()));
  }
  return result;
}

std::string ProcessGroup::scatter_bytes(
    const std::vector<std::string>& parts,
    int root) const {
  const auto count = static_cast<size_t>(world_size());
  auto sizes = at::zeros({world_size()}, at::kLong);
  if (rank() == root) {
    if (parts.size() != count) {
      throw UsageError(str_cat(
          "[scatter_bytes] got ",
          parts.size(),
          " parts, expected one for each of ",
          count,
          " ranks"));
    }
    for (size_t i = 0; i < count; ++i) {
      sizes[static_cast<int64_t>(i)] = static_cast<int64_t>(parts[i].size());
    }
  }
  broadcast(sizes, root);
  const int channel = open_channel();
  if (rank() == root) {
    std::vector<Transfer> transfers;
    for (int to = 0; to < world_size(); ++to) {
      if (to != root) {
        transfers.push_back(start_send(
            impl_->carried(bytes_tensor(parts[static_cast<size_t>(to)])),
            to,
            channel));
      }
    }
    for (auto& transfer : transfers) {
      transfer.wait();
    }
    return parts[static_cast<size_t>(root)];
  }
  const auto length = sizes[rank()].item<int64_t>();
  auto content = impl_->carried(at::empty({length}, at::kByte));
  start_receive(content, root, channel).wait();
  return to_string(content.cpu(), length);
}

ProcessGroup from_c10d(c10::intrusive_ptr<c10d::ProcessGroup> group) {
  if (!group) {
    throw UsageError("[from_c10d] got a null group, expected a c10d group");
  }
  auto name = group->getBackendName();
  return ProcessGroup(std::make_shared<ProcessGroup::Impl>(
      std::move(group), std::move(name), /*owns=*/false));
}

c10::intrusive_ptr<c10d::ProcessGroup> to_c10d(const ProcessGroup& group) {
  return group.impl()->group();
}

} // namespace accelerate
