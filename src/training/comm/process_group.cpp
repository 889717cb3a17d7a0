// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/process_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "accelerate/distributed/c10d.h"
#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/calling_line.h"
#include "training/comm/arguments.h"
#include "training/comm/backends/backends.h"
#include "training/comm/failures.h"
#include "training/comm/process_group_impl.h"
#include "training/comm/raw_check.h"
#include "training/comm/reduction.h"
#include "training/comm/script_lock.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr const char* kAnotherExited = "Another rank exited during ";

bool is_about_communication(const std::exception& error) {
  // An exception from user code may contain a traceback, whose paths do not
  // help.
  const std::string message = first_line(error.what());
  if (message.find(kAnotherExited) != std::string::npos) {
    return false; // one of our exceptions that passed through an interpreter
  }
  return dynamic_cast<const c10::DistError*>(&error) != nullptr ||
         is_gloo_error(error) || message.find("/gloo/") != std::string::npos ||
         message.find("NCCL") != std::string::npos;
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

// Copies the result back if a copy was sent.
void take(at::Tensor& tensor, const at::Tensor& carried) {
  if (!carried.is_same(tensor)) {
    tensor.copy_(carried);
  }
}

// Backends only move bytes. `tensor` must be contiguous.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.detach().view(-1).view(at::kByte);
}

// The same memory as real numbers. The stored values are reduced: a sum of
// conjugates is the conjugate of the sum.
at::Tensor as_real(const at::Tensor& tensor) {
  return at::view_as_real(tensor.is_conj() ? tensor.conj() : tensor);
}

void check_whole(
    const char* operation,
    const at::Tensor& whole,
    const at::Tensor& shard,
    int world_size) {
  check_dense(operation, whole);
  check_dense(operation, shard);
  if (whole.numel() != shard.numel() * world_size ||
      whole.scalar_type() != shard.scalar_type()) {
    throw UsageError(str_cat(
        "[",
        operation,
        "] The full tensor has ",
        whole.numel(),
        " elements of ",
        whole.scalar_type(),
        ", but each rank's shard has ",
        shard.numel(),
        " of ",
        shard.scalar_type(),
        ". Use the same dtype for both, and pad the full tensor to ",
        world_size,
        " equal shards"));
  }
}

void check_rows(
    const at::Tensor& output,
    const at::Tensor& rows,
    int world_size) {
  check_dense("scatter", rows);
  if (rows.dim() == 0 || rows.size(0) != world_size ||
      rows.numel() != output.numel() * world_size ||
      rows.scalar_type() != output.scalar_type()) {
    throw UsageError(str_cat(
        "[scatter] The rows have shape ",
        rows.sizes(),
        " and dtype ",
        rows.scalar_type(),
        ", but the outputs have shape ",
        output.sizes(),
        " and dtype ",
        output.scalar_type(),
        ". Use the same dtype for both, and pass ",
        world_size,
        " rows (one per rank), each with the shape of an output"));
  }
}

// Torch 2.13 renamed these collectives and deprecated the old names.
template <typename Group>
auto all_gather_single(Group& group, at::Tensor& whole, at::Tensor& shard) {
  if constexpr (requires { group.all_gather_single(whole, shard); }) {
    return group.all_gather_single(whole, shard);
  } else {
    return group._allgather_base(whole, shard);
  }
}

template <typename Group>
auto all_to_all_single(Group& group, at::Tensor& output, at::Tensor& input) {
  std::vector<int64_t> evenly;
  if constexpr (requires {
                  group.all_to_all_single(output, input, evenly, evenly);
                }) {
    return group.all_to_all_single(output, input, evenly, evenly);
  } else {
    return group.alltoall_base(output, input, evenly, evenly);
  }
}

template <typename Group>
auto reduce_scatter_single(
    Group& group,
    at::Tensor& shard,
    at::Tensor& whole,
    const c10d::ReduceScatterOptions& options) {
  if constexpr (requires {
                  group.reduce_scatter_single(shard, whole, options);
                }) {
    return group.reduce_scatter_single(shard, whole, options);
  } else {
    return group._reduce_scatter_base(shard, whole, options);
  }
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
      ranks_are_threads_(ranks_are_threads),
      counted_(collective_counter(group_)),
      uncounted_(uncounted_collectives(group_)) {
  const auto devices = group_->getDeviceTypes();
  const bool speaks_cpu = std::any_of(
      devices.begin(), devices.end(), [](const c10::Device& device) {
        return device.is_cpu();
      });
  if (!speaks_cpu && !devices.empty()) {
    substitute_ = devices.front().type();
  }
  if (!ranks_are_threads_ && hosts_communicate()) {
    board_ = Board::of(group_);
  }
}

at::Tensor ProcessGroup::Impl::carried(const at::Tensor& tensor) const {
  const auto plain = tensor.resolve_conj().resolve_neg().contiguous();
  return plain.is_cpu() && substitute_ ? plain.to(*substitute_) : plain;
}

bool ProcessGroup::Impl::shares_cpu_backend(c10::DeviceType device) const {
  if (device == c10::kCPU || !group_) {
    return true;
  }
  const auto devices = group_->getDeviceTypes();
  const bool is_known =
      std::any_of(devices.begin(), devices.end(), [&](const auto& other) {
        return other.type() == device;
      });
  return is_known && group_->getBackend(device) ==
                         group_->getBackend(substitute_.value_or(c10::kCPU));
}

bool ProcessGroup::Impl::sums_after_exchange(c10::DeviceType device) const {
  if (!group_) {
    return false;
  }
  const auto entry = find_backend(group_->getBackend(device)->getBackendName());
  return entry && entry->sums_after_exchange;
}

ProcessGroup::Impl::~Impl() {
  if (!owns_) {
    board_.reset(); // other handles of the group keep it
  }
  shutdown();
}

void ProcessGroup::Impl::adopt(std::weak_ptr<Impl> subgroup) {
  std::erase_if(subgroups_, [](const auto& entry) { return entry.expired(); });
  subgroups_.push_back(std::move(subgroup));
}

void ProcessGroup::Impl::shutdown() {
  // Threads of the group that end may be freeing tensors.
  const WithoutScriptLock unlocked;
  for (const auto& entry : std::exchange(subgroups_, {})) {
    if (const auto subgroup = entry.lock()) {
      subgroup->shutdown();
    }
  }
  if (board_) {
    board_->close(); // no rank waits for pending checks
  }
  unsettled_ = {};
  exchange_.reset();
  if (membership_ != nullptr && !is_subgroup_ && ranks_are_threads_) {
    membership_->is_over = true;
  }
  if (group_ && owns_) {
    try {
      group_->shutdown();
    } catch (const std::exception&) {
      // Ignore a lost connection, because this rank leaves anyway.
    }
  }
  group_.reset();
}

ProcessGroup::Work ProcessGroup::Impl::start(
    const std::shared_ptr<Impl>& impl,
    const char* operation,
    const at::Tensor& tensor,
    const Start& start,
    std::function<void()> complete) {
  if (impl->solo_) {
    throw UsageError(str_cat(
        "[",
        operation,
        "] The group has only one rank. Check is_solo() first"));
  }
  if (!impl->group_) {
    throw UsageError(str_cat(
        "[",
        operation,
        "] The process group is shut down. Call collectives before "
        "end_training()"));
  }
  finish_comparison(impl);
  Operation numbered = impl->describe(operation, tensor);
  numbered.number = impl->last_number() + 1;
  ++impl->num_operations_;
  const auto begin = Clock::now();
  // Backends that connect at the first call wait here.
  const WithoutScriptLock unlocked;
  const OperationScope scope(
      StepPhase::kCommunication, impl->membership_, numbered);
  try {
    auto work = start(*impl->group_);
    // Some operations are not counted, e.g. sends.
    numbered.number = impl->last_number();
    return Work(std::make_unique<Work::State>(
        Work::State{impl, numbered, std::move(work), std::move(complete)}));
  } catch (const std::exception& error) {
    impl->fail(numbered, error, seconds_since(begin));
  }
}

ObservedOperation ProcessGroup::Impl::describe(
    const char* operation,
    const at::Tensor& tensor) const {
  Operation described;
  described.name = operation;
  described.group_size = is_subgroup_ ? world_size_ : 0;
  if (tensor.defined()) {
    described.dtype = c10::toString(tensor.scalar_type());
    const auto sizes = tensor.sizes();
    described.num_dims = std::min(sizes.size(), described.sizes.size());
    std::copy_n(sizes.begin(), described.num_dims, described.sizes.begin());
  }
  return described;
}

void ProcessGroup::Impl::watch(std::chrono::milliseconds threshold) {
  exchange_ = HangExchange::watch(group_, threshold);
  membership_ = exchange_ ? &exchange_->membership() : nullptr;
  join_record();
}

void ProcessGroup::Impl::watch_with(const Impl& whole) {
  membership_ = whole.membership_;
  is_subgroup_ = true;
}

void ProcessGroup::Impl::join_record() const {
  if (membership_ != nullptr) {
    RankRecord::of_this_thread().join(*membership_);
  }
}

void ProcessGroup::Impl::finish_comparison(const std::shared_ptr<Impl>& impl) {
  if (impl->unsettled_) {
    // Take it out first, because it may call the group itself.
    std::exchange(impl->unsettled_, {})(ProcessGroup(impl));
  }
}

void ProcessGroup::Impl::finish(const Operation& operation, c10d::Work& work) {
  const auto begin = Clock::now();
  const WithoutScriptLock unlocked;
  const OperationScope scope(StepPhase::kCommunication, membership_, operation);
  try {
    work.wait();
  } catch (const std::exception& error) {
    fail(operation, error, seconds_since(begin));
  }
}

void ProcessGroup::Impl::guard(
    const char* operation,
    const std::function<void()>& work,
    StepPhase phase) {
  const auto begin = Clock::now();
  Operation whole; // without a number, because it consists of other operations
  whole.name = operation;
  const WithoutScriptLock unlocked;
  const OperationScope scope(phase, membership_, whole);
  try {
    work();
  } catch (const std::exception& error) {
    if (!group_ || !is_about_communication(error)) {
      throw;
    }
    fail(whole, error, seconds_since(begin));
  }
}

void ProcessGroup::Impl::fail(
    const Operation& operation,
    const std::exception& error,
    double seconds) const {
  if (membership_ != nullptr) {
    membership_->has_spoken = false; // the hang continues
  }
  if (dynamic_cast<const Error*>(&error) != nullptr) {
    throw; // it already describes the error of an inner operation
  }
  // The user's call, if this operation is only a step of it.
  const std::string doing = RankRecord::of_this_thread().operation();
  const std::string name = doing.empty() || doing.starts_with(operation.name)
                               ? operation.name
                               : doing;
  const std::string cause = first_line(error.what());
  const std::string which = str_cat(
      "collective ",
      operation.number > 0 ? operation.number : last_number(),
      " on rank ",
      rank_);
  if (is_timeout(cause)) {
    throw TimeoutError(str_cat(
        '[',
        name,
        "] ",
        which,
        " timed out after ",
        seconds,
        " s: another rank did not call it. Call the same collectives on every "
        "rank, or raise the timeout (",
        cause,
        ')'));
  }
  if (dynamic_cast<const c10::Error*>(&error) != nullptr &&
      !is_about_communication(error)) {
    throw UsageError(str_cat(
        '[',
        name,
        "] ",
        backend_,
        " rejected the arguments of ",
        which,
        ": ",
        cause));
  }
  if (!ranks_are_threads_) {
    wait_for_first_failure();
  }
  const std::string line = calling_line();
  throw CommError(str_cat(
      '[',
      name,
      "] ",
      kAnotherExited,
      which,
      line.empty() ? "" : str_cat(" (", line, ')'),
      ". Its error is above. If there is no error, that rank left a loop early "
      "(",
      cause,
      ')'));
}

ProcessGroup::Work::Work() = default;
ProcessGroup::Work::Work(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
ProcessGroup::Work::Work(Work&&) noexcept = default;
ProcessGroup::Work& ProcessGroup::Work::operator=(Work&& other) noexcept {
  // The destructor of `other` waits for the previous operation of this object.
  std::swap(state_, other.state_);
  return *this;
}
ProcessGroup::Work::~Work() {
  try {
    wait();
  } catch (const std::exception&) {
    // The other rank is gone. A rank that waits for it gets an error.
  }
}

void ProcessGroup::Work::wait() {
  if (const auto state = std::move(state_)) {
    state->impl->finish(state->operation, *state->work);
    if (state->complete) {
      const at::NoGradGuard no_grad;
      state->complete();
    }
  }
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
bool ProcessGroup::is_solo() const {
  return impl_->is_solo();
}
bool ProcessGroup::ranks_are_threads() const {
  return impl_->ranks_are_threads();
}
void ProcessGroup::shutdown() {
  impl_->shutdown();
}
bool ProcessGroup::is_shut_down() const {
  return impl_->is_shut_down();
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
    Impl::start(impl_, "barrier", {}, [&](auto& group) {
      // c10d's own barrier uses a static tensor. Ranks that are threads would
      // write it concurrently.
      return ranks_are_threads() ? group.getBackend(c10::kCPU)->barrier()
                                 : group.barrier();
    }).wait();
  }
}

ProcessGroup::Work ProcessGroup::start_broadcast(at::Tensor tensor, int root)
    const {
  check_raw(*this, str_cat("broadcast from rank ", root), {tensor});
  check_root(*this, "broadcast", root);
  check_dense("broadcast", tensor);
  if (impl_->is_solo()) {
    return {};
  }
  c10d::BroadcastOptions options;
  options.rootRank = root;
  const auto carried = impl_->carried(tensor);
  std::vector<at::Tensor> tensors = {as_bytes(carried)};
  return Impl::start(
      impl_,
      "broadcast",
      tensor,
      [&](auto& group) { return group.broadcast(tensors, options); },
      [tensor, carried]() mutable { take(tensor, carried); });
}

ProcessGroup::Work ProcessGroup::start_all_reduce(
    at::Tensor tensor,
    ReduceOp op) const {
  check_raw(*this, str_cat("all_reduce with ", name_of(op)), {tensor});
  check_reducible("all_reduce", tensor, op);
  if (impl_->is_solo()) {
    return {};
  }
  auto real = tensor.is_complex() ? as_real(tensor) : tensor;
  const bool is_ordered = is_reduced_ordered(real, op);
  const auto carried = impl_->carried(
      is_ordered                  ? as_ordered(real, op)
      : is_reduced_wide(real, op) ? real.to(at::kFloat)
                                  : real);
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op, tensor.scalar_type());
  // The caller's tensor may belong to Python. Its last owner needs the
  // interpreter, but a thread of the backend may release it after Python has
  // ended.
  std::vector<at::Tensor> tensors = {carried.detach()};
  return Impl::start(
      impl_,
      "all_reduce",
      tensor,
      [&](auto& group) { return group.allreduce(tensors, options); },
      [real, carried, op, is_ordered, size = world_size()]() mutable {
        divide(carried, op, size);
        take(real, is_ordered ? from_ordered(carried) : carried);
      });
}

ProcessGroup::Work ProcessGroup::start_all_gather_into(
    at::Tensor whole,
    const at::Tensor& shard) const {
  check_whole("all_gather_into", whole, shard, world_size());
  if (impl_->is_solo()) {
    const at::NoGradGuard no_grad;
    whole.copy_(shard.reshape(whole.sizes()));
    return {};
  }
  check_raw(*this, "all_gather", {shard});
  const auto carried = impl_->carried(shard);
  const bool is_direct = whole.is_contiguous() && !whole.is_conj() &&
                         !whole.is_neg() && whole.device() == carried.device();
  const auto gathered =
      is_direct
          ? whole
          : at::empty(whole.sizes(), carried.options().requires_grad(false));
  auto input = as_bytes(carried);
  auto output = as_bytes(gathered);
  return Impl::start(
      impl_,
      "all_gather",
      shard,
      [&](auto& group) { return all_gather_single(group, output, input); },
      [whole, gathered, carried]() mutable { take(whole, gathered); });
}

ProcessGroup::Work ProcessGroup::start_reduce_scatter(
    at::Tensor shard,
    const at::Tensor& whole,
    ReduceOp op) const {
  check_whole("reduce_scatter", whole, shard, world_size());
  check_raw(*this, str_cat("reduce_scatter with ", name_of(op)), {whole});
  check_reducible("reduce_scatter", whole, op);
  if (impl_->is_solo()) {
    const at::NoGradGuard no_grad;
    shard.copy_(whole.reshape(shard.sizes()));
    return {};
  }
  auto input = impl_->carried(whole.detach());
  input = (input.is_complex() ? at::view_as_real(input) : input).flatten();
  // The pieces of all ranks for this rank as rows, or their reduction as one
  // row.
  const bool by_exchange = impl_->sums_after_exchange(input.device().type());
  const bool is_ordered = !by_exchange && is_reduced_ordered(input, op);
  if (is_ordered) {
    input = as_ordered(input, op);
  } else if (!by_exchange && is_reduced_wide(input, op)) {
    input = input.to(at::kFloat);
  }
  auto rows = at::empty(
      {by_exchange ? world_size() : 1, input.numel() / world_size()},
      input.options());
  return Impl::start(
      impl_,
      "reduce_scatter",
      whole,
      [&, flat = rows.view(-1)](auto& group) mutable {
        if (by_exchange) {
          return all_to_all_single(group, flat, input);
        }
        c10d::ReduceScatterOptions options;
        options.reduceOp = to_c10d(op, input.scalar_type());
        return reduce_scatter_single(group, flat, input, options);
      },
      [shard, rows, input, op, is_ordered, size = world_size()]() mutable {
        auto reduced = reduce_rows(rows, op);
        if (is_ordered) {
          reduced = from_ordered(reduced);
        }
        divide(reduced, op, size);
        if (shard.is_complex()) {
          reduced = at::view_as_complex(reduced.view({-1, 2}));
        }
        shard.copy_(reduced.view(shard.sizes()));
      });
}

void ProcessGroup::broadcast(at::Tensor tensor, int root) const {
  start_broadcast(std::move(tensor), root).wait();
}

void ProcessGroup::all_reduce(at::Tensor tensor, ReduceOp op) const {
  start_all_reduce(std::move(tensor), op).wait();
}

void ProcessGroup::all_gather_into(at::Tensor whole, const at::Tensor& shard)
    const {
  start_all_gather_into(std::move(whole), shard).wait();
}

void ProcessGroup::reduce_scatter(
    at::Tensor shard,
    const at::Tensor& whole,
    ReduceOp op) const {
  start_reduce_scatter(std::move(shard), whole, op).wait();
}

at::Tensor ProcessGroup::all_gather(const at::Tensor& tensor) const {
  check_dense("all_gather", tensor);
  auto shape = tensor.sizes().vec();
  shape.insert(shape.begin(), world_size());
  auto rows = at::empty(shape, tensor.options().requires_grad(false));
  all_gather_into(rows, tensor);
  return rows;
}

at::Tensor ProcessGroup::gather_to(const at::Tensor& tensor, int root) const {
  check_raw(*this, str_cat("gather to rank ", root), {tensor});
  check_root(*this, "gather", root);
  check_dense("gather", tensor);
  if (impl_->is_solo()) {
    return all_gather(tensor);
  }
  c10d::GatherOptions options;
  options.rootRank = root;
  const auto carried = impl_->carried(tensor);
  at::Tensor rows;
  std::vector<std::vector<at::Tensor>> outputs;
  if (rank() == root) {
    auto shape = tensor.sizes().vec();
    shape.insert(shape.begin(), world_size());
    rows = at::empty(shape, carried.options().requires_grad(false));
    outputs.push_back(as_bytes(rows).view({world_size(), -1}).unbind(0));
  }
  std::vector<at::Tensor> inputs = {as_bytes(carried)};
  Impl::start(impl_, "gather", tensor, [&](auto& group) {
    return group.gather(outputs, inputs, options);
  }).wait();
  return rank() == root ? rows.to(tensor.device()) : rows;
}

void ProcessGroup::scatter(at::Tensor output, const at::Tensor& rows, int root)
    const {
  check_raw(*this, str_cat("scatter from rank ", root), {output});
  check_root(*this, "scatter", root);
  check_dense("scatter", output);
  if (rank() == root) {
    check_rows(output, rows, world_size());
  }
  const at::NoGradGuard no_grad;
  if (impl_->is_solo()) {
    output.copy_(rows[0].reshape(output.sizes()));
    return;
  }
  c10d::ScatterOptions options;
  options.rootRank = root;
  const auto carried = impl_->carried(output);
  std::vector<at::Tensor> outputs = {as_bytes(carried)};
  std::vector<std::vector<at::Tensor>> inputs;
  if (rank() == root) {
    inputs.push_back(
        as_bytes(impl_->carried(rows)).view({world_size(), -1}).unbind(0));
  }
  Impl::start(impl_, "scatter", output, [&](auto& group) {
    return group.scatter(outputs, inputs, options);
  }).wait();
  take(output, carried);
}

ProcessGroup::Work
ProcessGroup::start_send(const at::Tensor& tensor, int to, int channel) const {
  check_root(*this, "send", to);
  check_dense("send", tensor);
  const auto carried = impl_->carried(tensor);
  std::vector<at::Tensor> tensors = {as_bytes(carried)};
  return Impl::start(
      impl_,
      "send",
      tensor,
      [&](auto& group) { return group.send(tensors, to, channel); },
      [carried] {});
}

ProcessGroup::Work
ProcessGroup::start_receive(at::Tensor tensor, int from, int channel) const {
  check_root(*this, "receive", from);
  check_dense("receive", tensor);
  const auto carried = impl_->carried(tensor);
  std::vector<at::Tensor> tensors = {as_bytes(carried)};
  return Impl::start(
      impl_,
      "receive",
      tensor,
      [&](auto& group) { return group.recv(tensors, from, channel); },
      [tensor, carried]() mutable { take(tensor, carried); });
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

ProcessGroup from_c10d(c10::intrusive_ptr<c10d::ProcessGroup> group) {
  if (!group) {
    throw UsageError(
        "[from_c10d] The group is null. Pass a c10d::ProcessGroup");
  }
  auto name = group->getBackendName();
  ProcessGroup made(std::make_shared<ProcessGroup::Impl>(
      std::move(group), std::move(name), /*owns=*/false));
  made.impl()->watch(hang_threshold(std::nullopt));
  return made;
}

c10::intrusive_ptr<c10d::ProcessGroup> to_c10d(const ProcessGroup& group) {
  return group.impl()->group();
}

} // namespace accelerate
