// SPDX-License-Identifier: Apache-2.0
// Small messages between ranks of one host, through shared memory.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "core/base/internal.h"
#include "core/base/unique_file.h"

namespace accelerate {

/// One page of memory per rank of a group. A rank writes its own page and reads
/// the pages of the others.
///
/// Ranks open the board together. Each rank appends an offer to the row that it
/// sends through the backend (`add_offer`), and passes the rows of all ranks to
/// `read_offers`. The board opens after the first exchange in which every rank
/// reports that it has opened the pages of all others. If a rank cannot open
/// them, e.g. because it runs on another host, no rank uses the board.
///
/// A page is anonymous memory, so nothing remains after the processes end. Each
/// rank holds a lock on its page. The kernel releases the lock when the process
/// ends or executes another program, and other ranks notice within
/// `kBetweenLooks`. Forked children do not share the lock.
class ACCELERATE_INTERNAL Board : public std::enable_shared_from_this<Board> {
 public:
  static constexpr int64_t kMessageWords = 64;
  static constexpr int64_t kOfferWords = 5;
  /// A message followed by an offer, in int64.
  static constexpr int64_t kRowWords = kMessageWords + kOfferWords;
  static constexpr std::chrono::milliseconds kBetweenLooks{10};

  /// The board that all handles of a group in this process share.
  static std::shared_ptr<Board> of(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  /// `timeout` returns how long to wait for a message.
  using Timeout = std::function<std::chrono::milliseconds()>;
  Board(int rank, int world_size, Timeout timeout);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  void add_offer(const at::Tensor& row);
  void read_offers(const at::Tensor& rows);
  /// Whether the board is open. All exchanges then use it, even if they fail.
  bool is_open() const { return is_open_; }
  /// Makes all later exchanges fail, on all ranks. Thread-safe.
  void close();

  /// Sends the message in `row`. The work completes when `rows` contains the
  /// messages of all ranks. It fails if a rank is gone or does not send in
  /// time. The board is then unusable on all ranks.
  c10::intrusive_ptr<c10d::Work> start(
      const at::Tensor& row,
      const at::Tensor& rows);

 private:
  class Exchange;
  struct Page;
  struct Unmap {
    void operator()(const Page* page) const;
  };
  struct Peer {
    UniqueFile file;
    std::unique_ptr<const Page, Unmap> page;
  };
  struct Pending {
    at::Tensor rows;
    uint32_t number = 0;
    bool is_done = false;
  };
  enum class Answer : int64_t { kUndecided, kYes, kNo };

  bool make_page();
  bool open_peers(const at::Tensor& rows);
  static bool open_peer(Peer& peer, const int64_t* offer);
  void await(int rank, const Pending& pending);
  void collect(Pending& pending);
  void check_is_usable() const;

  int rank_;
  int world_size_;
  Timeout timeout_;
  int64_t token_[2] = {};
  UniqueFile file_;
  std::unique_ptr<Page, Unmap> page_;
  /// The other ranks. This rank's entry is empty.
  std::vector<Peer> peers_;
  Answer answer_ = Answer::kUndecided;
  bool is_open_ = false;
  std::atomic<bool> is_closed_ = false;
  /// The exchange in progress: sent, but not received yet.
  std::shared_ptr<Pending> pending_;
};

} // namespace accelerate
