// SPDX-License-Identifier: Apache-2.0
#include "training/comm/agreement.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "accelerate/error.h"
#include "core/base/stable_hash.h"
#include "core/base/str.h"
#include "core/observe/called_names.h"
#include "core/observe/calling_line.h"
#include "core/observe/script_stack.h"
#include "training/comm/arguments.h"
#include "training/comm/failure.h"
#include "training/comm/process_group_impl.h"
#include "training/comm/script_lock.h"

namespace accelerate {
namespace {

// The message of one exchange has a fixed size. It contains 64-bit words: a
// hash, whether values are included, the free sizes, and the values.
constexpr size_t kPacketWords = Board::kMessageWords;
constexpr size_t kSizesAt = 2;
constexpr size_t kMaxSizes = kPacketWords - kSizesAt;
static_assert(kMostNotes <= kMaxSizes);

/// The operation that a rank sends if it fails instead of calling a collective.
constexpr const char* kFailure = "tell_failure";

at::Tensor empty_packet() {
  return at::zeros({Board::kRowWords}, at::kLong);
}

/// The packets of all ranks while they are exchanged.
struct Exchange {
  at::Tensor packets;
  ProcessGroup::Work work;

  void wait(const ProcessGroup& group) {
    work.wait();
    if (const auto& board = group.impl()->board()) {
      board->read_offers(packets);
    }
  }
};

// Uses shared memory if all ranks share it, else the backend.
Exchange start_exchange(const ProcessGroup& group, const at::Tensor& packet) {
  const auto& impl = group.impl();
  ProcessGroup::Impl::finish_comparison(impl);
  const auto& board = impl->board();
  auto packets = at::zeros({group.world_size(), Board::kRowWords}, at::kLong);
  if (board && board->is_open()) {
    return {
        packets,
        ProcessGroup::Impl::start(
            impl, "all_gather", packet, [&](auto& /*carrier*/) {
              ++impl->num_uncounted();
              return board->start(packet, packets);
            })};
  }
  if (board) {
    board->add_offer(packet);
  }
  // Packets always match on all ranks, so they need no check.
  const bool checks = impl->checks_collectives();
  impl->set_checks_collectives(false);
  const auto restore =
      c10::make_scope_exit([&] { impl->set_checks_collectives(checks); });
  return {packets, group.start_all_gather_into(packets, packet)};
}

bool has_dim(const at::Tensor& tensor, FreeDim free) {
  return free.dim >= 0 && free.dim < tensor.dim();
}

bool is_free_dim(const at::Tensor& tensor, int64_t dim, FreeDim free) {
  return free.are_others_free || dim == free.dim || tensor.dim() <= free.dim;
}

std::string
describe(const ProcessGroup& group, const at::Tensor& tensor, FreeDim free) {
  if (!tensor.defined()) {
    return "undefined";
  }
  std::string text = str_cat(c10::toString(tensor.scalar_type()), '[');
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    text += dim > 0 ? "," : "";
    text +=
        is_free_dim(tensor, dim, free) ? "*" : std::to_string(tensor.size(dim));
  }
  text += ']';
  if (!group.impl()->shares_cpu_backend(tensor.device().type())) {
    text += str_cat(" on ", tensor.device().type());
  }
  return text;
}

/// The description that ranks compare: equal if their values match.
std::string describe(
    const ProcessGroup& group,
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free) {
  std::string text = leaves.structure.empty()
                         ? operation
                         : operation + " of " + leaves.structure;
  for (const auto& tensor : leaves.tensors) {
    text += ' ' + describe(group, tensor, free);
  }
  return text;
}

// The concatenated bytes of all tensors; empty if they exceed `space`, or are
// sent without the host.
std::optional<std::string> small_values(
    const ProcessGroup& group,
    const detail::Leaves& leaves,
    size_t space) {
  const auto goes_along = [&](const at::Tensor& tensor) {
    return is_dense(tensor) &&
           group.impl()->shares_cpu_backend(tensor.device().type());
  };
  size_t size = 0;
  for (const auto& tensor : leaves.tensors) {
    if (!goes_along(tensor) || tensor.nbytes() > space - size) {
      return std::nullopt;
    }
    size += tensor.nbytes();
  }
  std::string bytes;
  for (const auto& tensor : leaves.tensors) {
    const auto plain =
        tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
    bytes.append(static_cast<const char*>(plain.data_ptr()), plain.nbytes());
  }
  return bytes;
}

// Extracts the values of all ranks from their bytes. `leaves` are the tensors
// of this rank.
std::vector<std::vector<at::Tensor>> unpack(
    const std::vector<const char*>& bytes,
    const detail::Leaves& leaves,
    const std::vector<std::vector<int64_t>>& free_sizes,
    FreeDim free) {
  std::vector<std::vector<at::Tensor>> values(leaves.tensors.size());
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    const char* next = bytes[rank];
    for (size_t i = 0; i < leaves.tensors.size(); ++i) {
      const auto& own = leaves.tensors[i];
      auto shape = own.sizes().vec();
      if (has_dim(own, free)) {
        shape[static_cast<size_t>(free.dim)] = free_sizes[rank][i];
      }
      auto value = at::empty(shape, at::dtype(own.scalar_type()));
      std::memcpy(value.data_ptr(), next, value.nbytes());
      next += value.nbytes();
      values[i].push_back(std::move(value));
    }
  }
  return values;
}

std::vector<std::string> listed_entries(const std::string& description) {
  std::vector<std::string> entries;
  for (size_t begin = 0; begin <= description.size();) {
    const size_t end =
        std::min(description.find('\n', begin), description.size());
    entries.push_back(description.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries;
}

/// A tensor of a mismatching call, as messages describe it.
struct CallTensor {
  /// The description that ranks compare.
  std::string compared;
  std::string dtype;
  /// "[2, 4]", with the device if it matters.
  std::string shape;
};

/// What a rank called, with which values, and where.
struct RankCall {
  std::string operation;
  /// The description that ranks compare.
  std::string description;
  std::string structure;
  std::vector<CallTensor> tensors;
  std::string line;

  std::string encode() const {
    auto values = nlohmann::json::array();
    for (const auto& tensor : tensors) {
      values.push_back(
          nlohmann::json::array({tensor.compared, tensor.dtype, tensor.shape}));
    }
    const auto json = nlohmann::json::array(
        {operation, description, structure, line, values});
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  static RankCall decode(const std::string& text) {
    const auto json = nlohmann::json::parse(text);
    const auto text_at = [](const nlohmann::json& list, size_t index) {
      return list.at(index).get<std::string>();
    };
    RankCall call{
        text_at(json, 0),
        text_at(json, 1),
        text_at(json, 2),
        {},
        text_at(json, 3)};
    for (const auto& tensor : json.at(4)) {
      call.tensors.push_back(
          {text_at(tensor, 0), text_at(tensor, 1), text_at(tensor, 2)});
    }
    return call;
  }
};

RankCall describe_call(
    const ProcessGroup& group,
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free) {
  RankCall call{
      operation,
      describe(group, operation, leaves, free),
      leaves.structure,
      {},
      calling_line()};
  for (const auto& tensor : leaves.tensors) {
    auto& one = call.tensors.emplace_back();
    one.compared = describe(group, tensor, free);
    if (!tensor.defined()) {
      continue;
    }
    one.dtype = c10::toString(tensor.scalar_type());
    one.shape = str_cat(tensor.sizes());
    if (!group.impl()->shares_cpu_backend(tensor.device().type())) {
      one.shape += str_cat(" on ", tensor.device().type());
    }
  }
  return call;
}

/// The ranks with one description.
struct EqualCalls {
  RankCall call;
  std::vector<int> ranks;
};

/// The property that differs: its name, and a text for each value.
struct Difference {
  std::string kind;
  std::vector<std::string> values;
};

Difference find_difference(const std::vector<EqualCalls>& all) {
  Difference difference;
  const auto& last = all.back().call;
  const auto differs = [&](const auto& value_of) {
    return std::any_of(all.begin(), all.end(), [&](const auto& one) {
      return value_of(one.call) != value_of(last);
    });
  };
  if (differs([](const RankCall& one) { return one.structure; })) {
    const auto usual = listed_entries(last.structure);
    const auto odd = listed_entries(all.front().call.structure);
    const auto index = static_cast<size_t>(
        std::mismatch(odd.begin(), odd.end(), usual.begin(), usual.end())
            .first -
        odd.begin());
    for (const auto& one : all) {
      const auto entries = listed_entries(one.call.structure);
      auto text = index < entries.size() ? entries[index] : "nothing";
      if (text == "*" || text == "T") {
        text = "a tensor";
      }
      if (usual.size() > 1 || odd.size() > 1) {
        text += str_cat(" as entry ", index + 1, " of ", entries.size());
      }
      difference.values.push_back(text.empty() ? "nothing" : text);
    }
    return difference;
  }
  const size_t num_tensors = last.tensors.size();
  for (size_t i = 0; i < num_tensors; ++i) {
    const auto compared = [i](const RankCall& one) {
      return one.tensors[i].compared;
    };
    if (!differs(compared)) {
      continue;
    }
    const bool is_shape =
        !differs([i](const RankCall& one) { return one.tensors[i].dtype; });
    difference.kind = num_tensors == 1 ? "" : str_cat("tensor ", i + 1, " of ");
    difference.kind += is_shape ? "shape " : "dtype ";
    for (const auto& one : all) {
      const auto& tensor = one.call.tensors[i];
      difference.values.push_back(
          tensor.dtype.empty() ? "an undefined tensor"
          : is_shape           ? tensor.shape
                     : str_cat(tensor.dtype, " and shape ", tensor.shape));
    }
    break;
  }
  return difference;
}

std::string describe_mismatch(
    const std::vector<EqualCalls>& all,
    FreeDim free,
    bool in_script) {
  for (const auto& [call, ranks] : all) {
    if (call.operation == kFailure) {
      return str_cat(name_ranks(ranks), " failed with ", call.structure);
    }
  }
  const auto& last = all.back().call;
  const bool is_one_call =
      std::all_of(all.begin(), all.end(), [&](const auto& one) {
        return one.call.operation == last.operation;
      });
  const auto difference = is_one_call ? find_difference(all) : Difference();
  std::string text = as_called(all.front().call.operation) + " was called";
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& call = all[i].call;
    text += i == 0 ? "" : i == 1 ? " but" : " and";
    if (is_one_call) {
      text += i == 0 ? " with " + difference.kind : " ";
      text += difference.values[i];
    } else if (i > 0) {
      text += ' ' + as_called(call.operation);
    }
    text += str_cat(" on ", name_ranks(all[i].ranks));
    text += call.line.empty() ? "" : str_cat(" (", call.line, ')');
  }
  if (!is_one_call) {
    return str_cat(
        text,
        ". Call them on every rank in the same order. Is one of them inside `",
        in_script ? "if accelerator.is_main_process:"
                  : "if (accelerator.is_main_process())",
        "`, or did a rank leave a loop early?");
  }
  return str_cat(
      text,
      difference.kind.empty() || free.dim != 0
          ? ". Pass the same on every rank"
          : ". Only the size of dimension 0 may differ between ranks");
}

/// Itself a collective: ranks exchange their descriptions.
[[noreturn]] void throw_mismatch(
    const ProcessGroup& group,
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free) {
  std::vector<EqualCalls> all;
  const auto texts = [&] {
    const WithoutScriptLock unlocked;
    return group.all_gather_bytes(
        describe_call(group, operation, leaves, free).encode());
  }();
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    auto call = RankCall::decode(texts[rank]);
    const auto known = std::find_if(all.begin(), all.end(), [&](auto& one) {
      return one.call.description == call.description;
    });
    auto& same = known == all.end()
                     ? all.emplace_back(EqualCalls{std::move(call), {}})
                     : *known;
    same.ranks.push_back(static_cast<int>(rank));
  }
  // List a rank that is alone first. With two ranks, either may be wrong.
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.ranks.size(), -a.ranks[0]) <
           std::pair(b.ranks.size(), -b.ranks[0]);
  });
  throw MismatchError(describe_mismatch(all, free, has_script_stack()));
}

} // namespace

ComparisonResult agree(
    const ProcessGroup& group,
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free,
    Payload payload) {
  std::vector<int64_t> sizes;
  for (const auto& tensor : leaves.tensors) {
    const bool is_free = tensor.defined() && has_dim(tensor, free);
    sizes.push_back(is_free ? tensor.size(free.dim) : 0);
  }
  if (group.impl()->comparisons() != nullptr) {
    throw UsageError(str_cat(
        "[capture] ",
        operation,
        " exchanges data between processes, but a replay of the recorded step "
        "would skip it. Call it after the captured function"));
  }
  if (group.world_size() == 1) {
    return {{sizes}, std::nullopt};
  }
  const std::string description = describe(group, operation, leaves, free);
  const TopicScope topic(operation);
  const auto packet = empty_packet();
  auto* words = packet.data_ptr<int64_t>();
  words[0] = static_cast<int64_t>(stable_hash(description));
  const bool sizes_fit = sizes.size() <= kMaxSizes;
  const size_t values_at = kSizesAt + sizes.size();
  if (sizes_fit) {
    std::copy(sizes.begin(), sizes.end(), words + kSizesAt);
  }
  if (sizes_fit && payload == Payload::kSmallValues) {
    const size_t space = (kPacketWords - values_at) * sizeof(int64_t);
    if (const auto values = small_values(group, leaves, space)) {
      words[1] = 1;
      std::memcpy(words + values_at, values->data(), values->size());
    }
  }

  auto exchange = start_exchange(group, packet);
  exchange.wait(group);
  const auto& packets = exchange.packets;
  std::vector<const int64_t*> ranks;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    ranks.push_back(packets[rank].const_data_ptr<int64_t>());
  }
  bool all_sent_values = true;
  for (const auto* theirs : ranks) {
    if (theirs[0] != ranks[0][0]) {
      throw_mismatch(group, operation, leaves, free);
    }
    all_sent_values = all_sent_values && theirs[1] == 1;
  }
  at::Tensor all_sizes = packets.slice(1, kSizesAt).contiguous();
  if (!sizes_fit) {
    all_sizes = group.all_gather(at::tensor(sizes, at::kLong));
  }
  ComparisonResult result;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto* first = all_sizes[rank].const_data_ptr<int64_t>();
    result.free_sizes.emplace_back(first, first + sizes.size());
  }
  if (all_sent_values) {
    std::vector<const char*> bytes;
    for (const auto* theirs : ranks) {
      bytes.push_back(reinterpret_cast<const char*>(theirs + values_at));
    }
    result.values = unpack(bytes, leaves, result.free_sizes, free);
  }
  return result;
}

void agree_on_text(
    const ProcessGroup& group,
    const std::string& operation,
    const std::string& description) {
  if (auto* comparisons = group.impl()->comparisons();
      comparisons != nullptr && description.empty()) {
    if (group.world_size() > 1) {
      comparisons->push_back(operation);
    }
    return;
  }
  agree(group, operation, {{}, description}, {});
}

void report_failure(const ProcessGroup& group, const std::string& cause) {
  try {
    agree_on_text(group, kFailure, cause);
  } catch (const MismatchError&) {
    // The other ranks throw this error, but this rank has its own.
  }
}

bool is_on_any_rank(
    const ProcessGroup& group,
    const std::string& operation,
    bool flag) {
  const detail::Leaves leaves{{at::full({1}, flag ? 1 : 0, at::kInt)}, ""};
  const auto result =
      agree(group, operation, leaves, {}, Payload::kSmallValues);
  if (!result.values) {
    group.all_reduce(leaves.tensors[0], ReduceOp::kMax);
    return leaves.tensors[0].item<int>() != 0;
  }
  const auto& flags = (*result.values)[0];
  return std::any_of(flags.begin(), flags.end(), [](const auto& theirs) {
    return theirs.template item<int>() != 0;
  });
}

std::shared_ptr<const bool> announce(
    const ProcessGroup& group,
    const std::string& operation,
    const Notes& notes,
    OnNotes on_notes) {
  const auto& impl = group.impl();
  if (impl->comparisons() != nullptr) {
    impl->comparisons()->push_back(operation);
    return std::make_shared<const bool>(true);
  }
  if (impl->is_solo() || impl->is_shut_down() || !impl->hosts_communicate()) {
    return std::make_shared<const bool>(true);
  }
  const auto packet = empty_packet();
  packet.data_ptr<int64_t>()[0] =
      static_cast<int64_t>(stable_hash(describe(group, operation, {}, {})));
  std::copy(notes.begin(), notes.end(), packet.data_ptr<int64_t>() + kSizesAt);
  const auto exchange =
      std::make_shared<Exchange>(start_exchange(group, packet));
  const auto is_agreed = std::make_shared<bool>(false);
  // The group owns this function, so the function must not own the group.
  impl->set_unsettled(
      [exchange, operation, is_agreed, on_notes](const ProcessGroup& group) {
        const TopicScope topic(operation);
        exchange->wait(group);
        const auto* first = exchange->packets.const_data_ptr<int64_t>();
        const NotesOfRanks packets(
            first, static_cast<size_t>(group.world_size()), Board::kRowWords);
        for (size_t rank = 0; rank < packets.size(); ++rank) {
          if (packets[rank][0] != packets[0][0]) {
            throw_mismatch(group, operation, {}, {});
          }
        }
        *is_agreed = true;
        if (on_notes) {
          on_notes({first + kSizesAt, packets.size(), Board::kRowWords});
        }
      });
  return is_agreed;
}

void finish_comparison(const ProcessGroup& group) {
  ProcessGroup::Impl::finish_comparison(group.impl());
}

DeferredComparisons::DeferredComparisons(const ProcessGroup& group)
    : impl_(group.impl()) {
  finish_comparison(group);
  impl_->set_comparisons(&operations_);
}
DeferredComparisons::~DeferredComparisons() {
  impl_->set_comparisons(nullptr);
}

void repeat_comparisons(
    const ProcessGroup& group,
    const std::vector<std::string>& operations) {
  for (const auto& operation : operations) {
    announce(group, operation);
    finish_comparison(group);
  }
}

} // namespace accelerate
