// SPDX-License-Identifier: Apache-2.0
#include "comm/agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "accelerate/error.h"
#include "base/stable_hash.h"
#include "base/str.h"
#include "comm/arguments.h"
#include "comm/process_group_impl.h"

namespace accelerate {
namespace {

// What travels in the one exchange, of one size whatever ranks bring, in words
// of 64 bits: a hash, whether values came along, the free sizes, the values.
constexpr size_t kPacketWords = 64;
constexpr size_t kSizesAt = 2;
constexpr size_t kMaxSizes = kPacketWords - kSizesAt;

bool has_dim(const at::Tensor& tensor, FreeDim free) {
  return free.dim >= 0 && free.dim < tensor.dim();
}

std::string describe(
    const ProcessGroup& group,
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free) {
  std::string text = leaves.structure.empty()
                         ? operation
                         : operation + " of " + leaves.structure;
  for (const auto& tensor : leaves.tensors) {
    if (!tensor.defined()) {
      text += " undefined";
      continue;
    }
    text += str_cat(' ', c10::toString(tensor.scalar_type()), '[');
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      text += dim > 0 ? "," : "";
      const bool is_free =
          free.are_others_free || dim == free.dim || tensor.dim() <= free.dim;
      text += is_free ? "*" : std::to_string(tensor.size(dim));
    }
    text += ']';
    if (!group.impl()->travels_as_cpu(tensor.device().type())) {
      text += str_cat(" on ", tensor.device().type());
    }
  }
  return text;
}

// The bytes of all tensors, one after the other; nothing where they are more
// than `space`, or travel without the host.
std::optional<std::string> small_values(
    const ProcessGroup& group,
    const detail::Leaves& leaves,
    size_t space) {
  const auto goes_along = [&](const at::Tensor& tensor) {
    return is_dense(tensor) &&
           group.impl()->travels_as_cpu(tensor.device().type());
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

// All ranks' values out of their bytes. `leaves` are this rank's.
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

/// What of it is not as in the usual one: all of it, or the first entry of a
/// list.
std::string describe_difference(
    const std::string& odd,
    const std::string& usual) {
  const auto theirs = listed_entries(odd);
  const auto others = listed_entries(usual);
  const auto differs = static_cast<size_t>(
      std::mismatch(theirs.begin(), theirs.end(), others.begin(), others.end())
          .first -
      theirs.begin());
  const auto entry = [&](const std::vector<std::string>& list) {
    const auto text =
        differs < list.size() ? str_cat('<', list[differs], '>') : "nothing";
    return theirs.size() == 1 && others.size() == 1
               ? text
               : str_cat(text, " as entry ", differs + 1, " of ", list.size());
  };
  return str_cat(
      "brought ", entry(theirs), " where the others brought ", entry(others));
}

[[noreturn]] void throw_mismatch(
    const ProcessGroup& group,
    const std::string& operation,
    const std::string& description) {
  const auto all = group.all_gather_bytes(description);
  std::map<std::string, int> votes;
  for (const auto& text : all) {
    ++votes[text];
  }
  // The most common description is taken for the right one; rank 0's on a tie.
  std::string usual = all[0];
  for (const auto& text : all) {
    if (votes[text] > votes[usual]) {
      usual = text;
    }
  }
  std::string odd;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != usual) {
      odd += str_cat(
          odd.empty() ? "" : "; ",
          "rank ",
          rank,
          ' ',
          describe_difference(all[rank], usual));
    }
  }
  throw MismatchError(str_cat(
      "[",
      operation,
      "] ",
      odd,
      "; call it on all ranks, not inside of `if (is_main_process())`, with "
      "values of the same structure, dtype and shape"));
}

} // namespace

Agreement agree(
    const ProcessGroup& group,
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free,
    Sends sends) {
  std::vector<int64_t> sizes;
  for (const auto& tensor : leaves.tensors) {
    const bool is_free = tensor.defined() && has_dim(tensor, free);
    sizes.push_back(is_free ? tensor.size(free.dim) : 0);
  }
  if (group.impl()->meetings() != nullptr) {
    throw UsageError(str_cat(
        "[capture] ",
        operation,
        " inside of the captured function has ranks compare what they bring, "
        "which replays would leave out; call it after the function"));
  }
  if (group.world_size() == 1) {
    return {{sizes}, std::nullopt};
  }
  const std::string description = describe(group, operation, leaves, free);
  const TopicScope topic(listed_entries(description).front());
  auto packet = at::zeros({kPacketWords}, at::kLong);
  auto* words = packet.data_ptr<int64_t>();
  words[0] = static_cast<int64_t>(stable_hash(description));
  const bool sizes_fit = sizes.size() <= kMaxSizes;
  const size_t values_at = kSizesAt + sizes.size();
  if (sizes_fit) {
    std::copy(sizes.begin(), sizes.end(), words + kSizesAt);
  }
  if (sizes_fit && sends == Sends::kSmallValues) {
    const size_t space = (kPacketWords - values_at) * sizeof(int64_t);
    if (const auto values = small_values(group, leaves, space)) {
      words[1] = 1;
      std::memcpy(words + values_at, values->data(), values->size());
    }
  }

  const auto packets = group.all_gather(packet);
  std::vector<const int64_t*> ranks;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    ranks.push_back(packets[rank].const_data_ptr<int64_t>());
  }
  bool all_sent_values = true;
  for (const auto* theirs : ranks) {
    if (theirs[0] != ranks[0][0]) {
      throw_mismatch(group, operation, description);
    }
    all_sent_values = all_sent_values && theirs[1] == 1;
  }
  at::Tensor all_sizes = packets.slice(1, kSizesAt).contiguous();
  if (!sizes_fit) {
    all_sizes = group.all_gather(at::tensor(sizes, at::kLong));
  }
  Agreement agreement;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto* first = all_sizes[rank].const_data_ptr<int64_t>();
    agreement.free_sizes.emplace_back(first, first + sizes.size());
  }
  if (all_sent_values) {
    std::vector<const char*> bytes;
    for (const auto* theirs : ranks) {
      bytes.push_back(reinterpret_cast<const char*>(theirs + values_at));
    }
    agreement.values = unpack(bytes, leaves, agreement.free_sizes, free);
  }
  return agreement;
}

void agree_on_text(
    const ProcessGroup& group,
    const std::string& operation,
    const std::string& description) {
  if (auto* meetings = group.impl()->meetings();
      meetings != nullptr && description.empty()) {
    if (group.world_size() > 1) {
      meetings->push_back(operation);
    }
    return;
  }
  agree(group, operation, {{}, description}, {});
}

bool is_on_any_rank(
    const ProcessGroup& group,
    const std::string& operation,
    bool flag) {
  const detail::Leaves leaves{{at::full({1}, flag ? 1 : 0, at::kInt)}, ""};
  const auto agreement =
      agree(group, operation, leaves, {}, Sends::kSmallValues);
  if (!agreement.values) {
    group.all_reduce(leaves.tensors[0], ReduceOp::kMax);
    return leaves.tensors[0].item<int>() != 0;
  }
  const auto& flags = (*agreement.values)[0];
  return std::any_of(flags.begin(), flags.end(), [](const auto& theirs) {
    return theirs.template item<int>() != 0;
  });
}

std::shared_ptr<const bool> announce(
    const ProcessGroup& group,
    const std::string& operation) {
  const auto& impl = group.impl();
  if (impl->meetings() != nullptr) {
    impl->meetings()->push_back(operation);
    return std::make_shared<const bool>(true);
  }
  if (impl->is_solo() || impl->is_shut_down() || !impl->hosts_meet()) {
    return std::make_shared<const bool>(true);
  }
  auto packets = at::zeros(
      {group.world_size(), static_cast<int64_t>(kPacketWords)}, at::kLong);
  auto packet = at::zeros({kPacketWords}, at::kLong);
  const std::string description = describe(group, operation, {}, {});
  packet.data_ptr<int64_t>()[0] =
      static_cast<int64_t>(stable_hash(description));
  auto exchange = std::make_shared<ProcessGroup::Work>(
      group.start_all_gather_into(packets, packet));
  const auto is_agreed = std::make_shared<bool>(false);
  // The group holds what is to be done; it must not hold itself.
  impl->set_unsettled([exchange, packets, operation, description, is_agreed](
                          const ProcessGroup& group) {
    const TopicScope topic(description);
    exchange->wait();
    for (int rank = 0; rank < group.world_size(); ++rank) {
      if (packets[rank].const_data_ptr<int64_t>()[0] !=
          packets[0].const_data_ptr<int64_t>()[0]) {
        throw_mismatch(group, operation, description);
      }
    }
    *is_agreed = true;
  });
  return is_agreed;
}

void settle(const ProcessGroup& group) {
  ProcessGroup::Impl::settle(group.impl());
}

DeferredMeetings::DeferredMeetings(const ProcessGroup& group)
    : impl_(group.impl()) {
  settle(group);
  impl_->set_meetings(&operations_);
}
DeferredMeetings::~DeferredMeetings() {
  impl_->set_meetings(nullptr);
}

void hold_meetings(
    const ProcessGroup& group,
    const std::vector<std::string>& operations) {
  for (const auto& operation : operations) {
    announce(group, operation);
    settle(group);
  }
}

} // namespace accelerate
